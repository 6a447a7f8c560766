"""Limits: what operators may set, which gates a task has to pass, and why a due task waits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Self

from tasks_app.domain.durations import ALLOWED_RATE, format_duration, parse_rate
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.options import LONGEST_KEY, check_integer, check_name, check_queue
from tasks_app.domain.tasks.payload_checks import check_text

MOST = 2**31 - 1
# Checks of a bucket per second while a task waits for it. A bucket that holds less than flows in
# between two checks would lose tokens.
LOOKS_A_SECOND = 10


ANY = "*"  # at the end of a target: all limit keys with this prefix, each with its own limit


class GateKind(StrEnum):
    """The kind of a gate; also the first kinds of a :class:`WaitingReason`."""

    ORDER = "order"
    QUEUE = "queue"
    NAME = "name"
    KEY = "key"
    LOCK = "lock"  # a resource that the task declares; the lock tables say who has it


class WaitingKind(StrEnum):
    """Values of ``task_pending.parked_kind``."""

    ORDER = "order"
    QUEUE = "queue"
    NAME = "name"
    KEY = "key"
    LOCK = "lock"
    BREAKER = "breaker"
    LET_THROUGH = "let_through"  # it may run although its breaker is not closed: as probe or ramp
    HANDLER = "handler"  # no live worker of its queue knows its name
    ENCRYPTION = "encryption"  # the worker that claimed it lacks a key


# A reason's text is these words, a blank and the subject. Those of gates name rows of `task_gate`.
REASON_WORDS: dict[str, str] = {
    WaitingKind.ORDER: "order",
    WaitingKind.QUEUE: "limit queue",
    WaitingKind.NAME: "limit name",
    WaitingKind.KEY: "limit key",
    WaitingKind.LOCK: "lock",
    WaitingKind.BREAKER: "held by breaker",
    WaitingKind.LET_THROUGH: "let through by breaker",
    WaitingKind.HANDLER: "no live worker of this queue has a handler named",
    WaitingKind.ENCRYPTION: "encryption key missing:",
}


class Gate(NamedTuple):
    """A gate; its text is the key of its row in ``task_gate``."""

    kind: GateKind
    key: str

    def __str__(self) -> str:
        return f"{REASON_WORDS[self.kind]} {self.key}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the gate of a row; raises ValueError."""
        for kind in GateKind:
            if text.startswith(f"{REASON_WORDS[kind]} "):
                return cls(kind, text[len(REASON_WORDS[kind]) + 1 :])
        raise ValueError(f"{text!r:.60} is not a gate")


class WaitingReason(NamedTuple):
    """Why a row waits; its text is in the column ``parked``."""

    kind: WaitingKind
    subject: str  # an order key, a queue, a task's name, a limit key, a resource, or a dependency

    def __str__(self) -> str:
        return f"{REASON_WORDS[self.kind]} {self.subject}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that an operator has set."""

    kind: GateKind  # A queue, a task name, or limit keys
    target: str  # its name; for limit keys also a prefix, as tenant:*
    most: int | None = None  # runs at a time
    rate: int | None = None  # starts in each `period`
    period: timedelta | None = None
    burst: int | None = None  # most starts at once, after a quiet time
    changed_at: datetime | None = field(default=None, compare=False, repr=False)  # None: not read

    @property
    def per_second(self) -> float:
        """Tokens per second that flow into its bucket; 0: it has none."""
        if self.rate is None or self.period is None:
            return 0.0
        return self.rate / self.period.total_seconds()

    @property
    def span(self) -> str:
        """Its period in words, or an empty string."""
        return "" if self.period is None else format_duration(self.period)

    def tokens(self, left: float | None, since_s: float) -> float:
        """Return the tokens of a bucket with ``left`` tokens ``since_s`` ago; None: it is new."""
        if self.burst is None:
            return math.inf
        if left is None:
            return float(self.burst)
        return min(self.burst, left + max(0.0, since_s) * self.per_second)


class Limits:
    """All limits, and which of them applies to a gate."""

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self._exact: dict[tuple[GateKind, str], Limit] = {}
        self._prefixes: list[tuple[str, Limit]] = []
        self._places: dict[tuple[str, str], tuple[Gate, ...]] = {}  # cache: gates by queue and name
        self._keys: dict[str, Limit | None] = {}  # cache: limits by key
        for limit in limits:
            if limit.kind is GateKind.KEY and limit.target.endswith(ANY):
                self._prefixes.append((limit.target.removesuffix(ANY), limit))
            else:
                self._exact[limit.kind, limit.target] = limit
        self._prefixes.sort(key=lambda each: -len(each[0]))

    def of(self, gate: Gate) -> Limit | None:
        """Return the limit of a gate; for a limit key, the one with the longest matching target."""
        return self._of_key(gate.key) if gate.kind is GateKind.KEY else self._exact.get(gate)

    def has_bucket(self, gate: Gate) -> bool:
        limit = self.of(gate)
        return limit is not None and limit.burst is not None

    def have_places_of(self, gate: Gate) -> bool:
        """Whether the end of a run makes room at the gate; it adds nothing to a bucket."""
        limit = self.of(gate)
        return gate.kind is GateKind.ORDER or limit is None or limit.most is not None

    def gates_of(
        self,
        queue: str,
        name: str,
        order_key: str | None,
        limit_key: str | None,
        more_limit_keys: Iterable[str] | None = None,
    ) -> tuple[Gate, ...]:
        gates = self._places.get((queue, name))
        if gates is None:
            places = (Gate(GateKind.QUEUE, queue), Gate(GateKind.NAME, name))
            gates = tuple([gate for gate in places if gate in self._exact])
            self._places[queue, name] = gates
        if limit_key and self._of_key(limit_key) is not None:
            gates = (*gates, Gate(GateKind.KEY, limit_key))
        if more_limit_keys is not None:
            limited = [key for key in more_limit_keys if self._of_key(key) is not None]
            gates = (*gates, *(Gate(GateKind.KEY, key) for key in limited))
        return gates if order_key is None else (Gate(GateKind.ORDER, order_key), *gates)

    def _of_key(self, key: str) -> Limit | None:
        if key in self._keys:
            return self._keys[key]
        by_prefix = (limit for prefix, limit in self._prefixes if key.startswith(prefix))
        found = self._exact.get((GateKind.KEY, key)) or next(by_prefix, None)
        self._keys[key] = found
        return found


def checked_target(kind: Any, target: Any) -> tuple[GateKind, str]:
    """Return kind and target of a limit. Raises InvalidTaskError."""
    limited = [each.value for each in GateKind if each not in {GateKind.ORDER, GateKind.LOCK}]
    if kind not in limited:
        raise InvalidTaskError("limit.kind", "is unknown", ", ".join(limited))
    if kind == GateKind.QUEUE:
        return GateKind.QUEUE, check_queue(target)
    if kind == GateKind.NAME:
        return GateKind.NAME, check_name(target)
    if not isinstance(target, str) or not 1 <= len(target) <= LONGEST_KEY:
        allowed = f"text of 1 to {LONGEST_KEY} characters, or the beginning of some and *"
        raise InvalidTaskError("limit.target", "is not a limit key", allowed)
    return GateKind.KEY, check_text(target, "limit.target")


def limit_of(kind: Any, target: Any, most: Any, rate: Any, burst: Any) -> Limit:
    """Return the limit; ``rate`` looks like ``100/1m``; raises InvalidTaskError."""
    of = checked_target(kind, target)
    if most is None and rate is None:
        raise InvalidTaskError("limit", "limits nothing", "most, rate, or both")
    if most is not None:
        most = check_integer(most, "limit.most", 0, MOST)
    if rate is None:
        if burst is not None:
            raise InvalidTaskError("limit.burst", "is given without a rate", "both, or none")
        return Limit(*of, most)
    try:
        number, period = parse_rate(rate)
    except ValueError:
        raise InvalidTaskError("limit.rate", "is not a rate", ALLOWED_RATE) from None
    limit = Limit(*of, most, number, period, 1)
    least = max(1, math.ceil(limit.per_second / LOOKS_A_SECOND))
    if burst is None:
        burst = max(1, math.ceil(limit.per_second))
    burst = check_integer(burst, "limit.burst", 1, MOST)
    if burst < least:
        raise InvalidTaskError("limit.burst", f"is {burst} at {rate}", f"at least {least}")
    return Limit(*of, most, number, period, burst)
