"""A limit in the words of whoever sets it, checked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Self

from tasks_app.domain.durations import format_duration, parse_duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.names import check_name, check_queue
from tasks_app.domain.tasks.option_checks import LONGEST_KEY
from tasks_app.domain.tasks.payload_checks import check_text

MOST = 2**31 - 1
LONGEST_PERIOD = timedelta(days=366)
LOOKS_A_SECOND = 10
"""So often a bucket is looked at while somebody waits for it: one that holds less than what flows
in between would lose the rest."""


def checked_target(kind: Any, target: Any) -> tuple[Kind, str]:
    """Return what a limit is of.

    Raises:
        InvalidTaskError: there is no such thing.
    """
    limited = [each.value for each in Kind if each is not Kind.ORDER]
    if kind not in limited:
        raise InvalidTaskError("limit.kind", "is none", ", ".join(limited))
    if kind == Kind.QUEUE:
        return Kind.QUEUE, check_queue(target)
    if kind == Kind.NAME:
        return Kind.NAME, check_name(target)
    if not isinstance(target, str) or not 1 <= len(target) <= LONGEST_KEY:
        allowed = f"text of 1 to {LONGEST_KEY} characters, or the beginning of some and *"
        raise InvalidTaskError("limit.target", "is no limit key", allowed)
    return Kind.KEY, check_text(target, "limit.target")


def limit_of(kind: Any, target: Any, most: Any, rate: Any, burst: Any) -> Limit:
    """Return the limit; ``rate`` is such as ``100/1m``.

    Raises:
        InvalidTaskError: it limits nothing, or cannot be kept.
    """
    of = checked_target(kind, target)
    if most is None and rate is None:
        raise InvalidTaskError("limit", "limits nothing", "most, rate, or both")
    if most is not None:
        most = _integer("most", most, 0)
    if rate is None:
        if burst is not None:
            raise InvalidTaskError("limit.burst", "is given without a rate", "both, or none")
        return Limit(*of, most)
    number, period = _rate(rate)
    limit = Limit(*of, most, number, period, 1)
    least = max(1, math.ceil(limit.per_second / LOOKS_A_SECOND))
    burst = max(1, math.ceil(limit.per_second)) if burst is None else _integer("burst", burst, 1)
    if burst < least:
        raise InvalidTaskError("limit.burst", f"is {burst} at {rate}", f"at least {least}")
    return Limit(*of, most, number, period, burst)


def _rate(rate: Any) -> tuple[int, timedelta]:
    number, _, span = rate.partition("/") if isinstance(rate, str) else ("", "", "")
    try:
        period = parse_duration(span)
        some = int(number)
    except ValueError:
        some, period = 0, timedelta(0)
    if not 1 <= some <= MOST or not timedelta(milliseconds=1) <= period <= LONGEST_PERIOD:
        raise InvalidTaskError("limit.rate", "is none", "a number and a time, such as 100/1m")
    return some, period


def _integer(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise InvalidTaskError(f"limit.{name}", "is out of range", f"an integer {least} .. {MOST}")
    return value


ANY = "*"
"""At its end a target stands for all limit keys that begin so; each is limited by itself."""


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
