"""Gates: what a task must pass before it may run, and who passes when there is room for some.

A gate is an order key, or what a limit is set for: a queue, a name, a limit key. The pool tells how
each one stands; here is decided. Whatever else may hold a task back is one more kind of gate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Self

from tasks_app.domain.durations import format_duration

ANY = "*"
"""At its end a target stands for all limit keys that begin so; each is limited by itself."""


class OrderPolicy(StrEnum):
    """What a task does to those behind it that waits to be tried again, or has failed for good."""

    BLOCKS = "blocks"
    """They wait until it is over, and one that failed until it is requeued or let go."""
    SKIPS = "skips"


class Kind(StrEnum):
    """What a gate is of."""

    ORDER = "order"
    QUEUE = "queue"
    NAME = "name"
    KEY = "key"


class Gate(NamedTuple):
    """One gate; its text is what its row is called, and why a task is parked."""

    kind: Kind
    key: str

    def __str__(self) -> str:
        return f"{_WORDS[self.kind]} {self.key}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the gate of that text.

        Raises:
            ValueError: it is none.
        """
        for kind, words in _WORDS.items():
            if text.startswith(f"{words} "):
                return cls(kind, text[len(words) + 1 :])
        raise ValueError(f"{text!r:.60} is no gate")


_WORDS = {
    Kind.ORDER: "order",
    Kind.QUEUE: "limit queue",
    Kind.NAME: "limit name",
    Kind.KEY: "limit key",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """What an operator allows."""

    kind: Kind
    """Of a queue, of a name, or of limit keys."""
    target: str
    """Which one; of limit keys perhaps all that begin so: ``tenant:*``."""
    most: int | None = None
    """So many run at a time."""
    rate: int | None = None
    """So many start in each ``period``."""
    period: timedelta | None = None
    burst: int | None = None
    """So many at once at most, after a quiet time."""
    changed_at: datetime | None = field(default=None, compare=False, repr=False)
    """None: it was not asked for."""

    @property
    def per_second(self) -> float:
        """How fast its bucket fills; 0: it has none."""
        if self.rate is None or self.period is None:
            return 0.0
        return self.rate / self.period.total_seconds()

    @property
    def span(self) -> str:
        """Its period in words; nothing without one."""
        return "" if self.period is None else format_duration(self.period)

    def tokens(self, left: float | None, since_s: float) -> float:
        """Return what the bucket holds that had so many left so long ago; None: it is new."""
        if self.burst is None:
            return math.inf
        if left is None:
            return float(self.burst)
        return min(self.burst, left + max(0.0, since_s) * self.per_second)


class Limits:
    """All limits, and which of them holds for whom."""

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self._exact: dict[tuple[Kind, str], Limit] = {}
        self._prefixes: list[tuple[str, Limit]] = []
        self._places: dict[tuple[str, str], tuple[Gate, ...]] = {}
        """The gates of queues and names that were asked for, and below the limits of keys."""
        self._keys: dict[str, Limit | None] = {}
        for limit in limits:
            if limit.kind is Kind.KEY and limit.target.endswith(ANY):
                self._prefixes.append((limit.target.removesuffix(ANY), limit))
            else:
                self._exact[limit.kind, limit.target] = limit
        self._prefixes.sort(key=lambda each: -len(each[0]))

    def of(self, gate: Gate) -> Limit | None:
        """Return the limit of a gate; of limit keys the longest target that fits."""
        return self._of_key(gate.key) if gate.kind is Kind.KEY else self._exact.get(gate)

    def has_bucket(self, gate: Gate) -> bool:
        """Whether so many may start in some time."""
        limit = self.of(gate)
        return limit is not None and limit.burst is not None

    def gates_of(
        self, queue: str, name: str, order_key: str | None, limit_key: str | None
    ) -> tuple[Gate, ...]:
        """Return the gates that a task must pass."""
        gates = self._places.get((queue, name))
        if gates is None:
            places = (Gate(Kind.QUEUE, queue), Gate(Kind.NAME, name))
            gates = tuple([gate for gate in places if gate in self._exact])
            self._places[queue, name] = gates
        if limit_key and self._of_key(limit_key) is not None:
            gates = (*gates, Gate(Kind.KEY, limit_key))
        return gates if order_key is None else (Gate(Kind.ORDER, order_key), *gates)

    def _of_key(self, key: str) -> Limit | None:
        if key in self._keys:
            return self._keys[key]
        found = self._exact.get((Kind.KEY, key))
        if found is None:
            for prefix, limit in self._prefixes:
                if key.startswith(prefix):
                    found = limit
                    break
        self._keys[key] = found
        return found


class Waiting(NamedTuple):
    """A task that is due, and what it must pass."""

    task_id: int
    gates: tuple[Gate, ...]


NEVER = datetime.min  # noqa: DTZ901  nobody looked yet


class Bucket(NamedTuple):
    """What the row of a gate says of its bucket."""

    tokens: float | None
    """So many were left; None: nothing was ever taken."""
    since_s: float
    at: datetime


@dataclass(slots=True, eq=False)
class Capacity:
    """How a gate stands at one moment."""

    free: float
    """So many may pass; infinity: any number."""
    head: int | None = None
    """Of an order key: this one alone."""
    ordered: bool = False
    leaves_s: float = math.inf
    """Until its head expires, which lets the next one pass."""
    tokens: float = math.inf
    """What its bucket holds."""
    running: int = 0
    since: datetime | None = None
    """When the first of the running began; None: nobody runs."""
    at: datetime = NEVER

    def admits(self, task_id: int) -> bool:
        """Whether this task may pass now."""
        return self.free >= 1 and (not self.ordered or task_id == self.head)


def room_of(
    gate: Gate, limit: Limit | None, running: int, head: int | None, bucket: Bucket | None
) -> Capacity:
    """Return how a gate stands: so many run behind it, so much was left in its bucket."""
    if gate.kind is Kind.ORDER:
        free = 1.0 if running == 0 and head is not None else 0.0
        return Capacity(free, head, ordered=True, running=running)
    if limit is None:
        return Capacity(math.inf, running=running)
    free = math.inf if limit.most is None else max(0.0, limit.most - running)
    if limit.burst is None:
        return Capacity(free, running=running)
    left, since_s, at = bucket or _UNTOUCHED
    tokens = limit.tokens(left, since_s)
    return Capacity(max(0.0, min(free, math.floor(tokens))), tokens=tokens, running=running, at=at)


_UNTOUCHED = Bucket(None, 0.0, NEVER)


@dataclass(slots=True)
class Admission:
    """Who may run, and who is held by which gate."""

    ids: list[int] = field(default_factory=list)
    held: dict[Gate, list[int]] = field(default_factory=dict)
    behind: set[Gate] = field(default_factory=set)
    """All gates of those that are held."""


def admit(wishes: Sequence[Waiting], rooms: Mapping[Gate, Capacity]) -> Admission:
    """Let pass what finds room at all of its gates, in the order given; hold the others.

    Who wishes for a gate that is not among the rooms is left out: it is looked at again.
    """
    admission = Admission()
    for task_id, gates in wishes:
        passed: list[Capacity] = []
        for gate in gates:
            room = rooms.get(gate)
            if room is None:
                break
            if not room.admits(task_id):
                admission.held.setdefault(gate, []).append(task_id)
                admission.behind.update(gates)
                break
            passed.append(room)
        else:
            for room in passed:
                room.free -= 1
            admission.ids.append(task_id)
    return admission
