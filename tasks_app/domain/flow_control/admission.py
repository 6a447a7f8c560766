"""Which tasks pass the gates when there is room, and in which order a fair queue starts them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit


class Waiting(NamedTuple):
    """A task that is due, and what it must pass."""

    task_id: int
    gates: tuple[Gate, ...]


NEVER = datetime.min  # noqa: DTZ901  nobody looked yet


class TokenBucket(NamedTuple):
    """What the row of a gate says of its bucket."""

    tokens: float | None
    """Left at ``since_s`` ago; None: nothing was ever taken."""
    since_s: float
    at: datetime


@dataclass(slots=True, eq=False)
class Capacity:
    """How a gate stands at one moment."""

    free: float
    """How many may pass; infinity: any number."""
    head: int | None = None
    """Of an order key: this one alone."""
    ordered: bool = False
    leaves_s: float = math.inf
    """Seconds until its head expires, which lets the next one pass."""
    tokens: float = math.inf
    """What its bucket holds."""
    running: int = 0
    since: datetime | None = None
    """When the oldest run began; None: nothing runs."""
    at: datetime = NEVER

    def admits(self, task_id: int) -> bool:
        return self.free >= 1 and (not self.ordered or task_id == self.head)


def room_of(
    gate: Gate, limit: Limit | None, running: int, head: int | None, bucket: TokenBucket | None
) -> Capacity:
    """Return how a gate stands, from what runs behind it and what its bucket had left."""
    if gate.kind is GateKind.ORDER:
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


_UNTOUCHED = TokenBucket(None, 0.0, NEVER)


@dataclass(slots=True)
class Admission:
    """The tasks that may run, and those that each gate holds."""

    ids: list[int] = field(default_factory=list)
    held: dict[Gate, list[int]] = field(default_factory=dict)
    behind: set[Gate] = field(default_factory=set)
    """All gates of those that are held."""


def admit(waiting: Sequence[Waiting], rooms: Mapping[Gate, Capacity]) -> Admission:
    """Let pass what finds room at all of its gates, in the order given; hold the others.

    A task that waits for a gate that is not among the rooms is left out: it is looked at again.
    """
    admission = Admission()
    for task_id, gates in waiting:
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


EVERY = 20
"""One of this many tasks of a key goes to each priority that waits behind a better one: 5 %."""
REMEMBERED = 10_000
"""Keys of a queue; a forgotten one begins where the others are."""


class FairLine(NamedTuple):
    """Tasks of one queue that wait behind each other."""

    key: str
    """Empty: those without one."""
    priority: int


class Pick(NamedTuple):
    """One task that is to go next."""

    id: int
    line: FairLine
    behind: tuple[int, ...]
    """Worse priorities of its key that had to wait for it."""


@dataclass(slots=True)
class Shares:
    """What the keys of one queue have had, as far as one dispatcher has given it."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Of keys that do not have the weight 1."""
    remembered: int = REMEMBERED
    _had: dict[str, float] = field(default_factory=dict)
    """Tasks by weight; only differences mean something."""
    _owed: dict[FairLine, int] = field(default_factory=dict)
    """How many went while each priority waited, since it had its turn."""
    _at: float = 0.0
    """Where the last one stood whose turn it was."""

    def order(self, waiting: Mapping[FairLine, Sequence[int]], most: int) -> list[Pick]:
        """Return up to ``most`` of the ids, in the order in which they are to go.

        Nothing is charged for them before :meth:`went`.
        """
        left = {line: list(reversed(ids)) for line, ids in waiting.items() if ids}
        priorities: dict[str, list[int]] = {}
        for line in sorted(left):
            priorities.setdefault(line.key, []).append(line.priority)
        turns = [(max(self._had.get(key, 0.0), self._at), key) for key in priorities]
        heapify(turns)
        owed = dict(self._owed)
        picks: list[Pick] = []
        while turns and len(picks) < most:
            had, key = heappop(turns)
            line, behind = _next(key, priorities[key], owed)
            picks.append(Pick(left[line].pop(), line, behind))
            if not left[line]:
                priorities[key].remove(line.priority)
            if priorities[key]:
                heappush(turns, (had + self._price(key), key))
        return picks

    def went(self, picks: Iterable[Pick]) -> None:
        """Charge the keys for those that went, the first ones of an order."""
        for pick in picks:
            key = pick.line.key
            self._at = max(self._had.get(key, 0.0), self._at)
            self._had[key] = self._at + self._price(key)
            _charge(pick.line, pick.behind, self._owed)
        if len(self._had) > self.remembered:  # of many who came once, the half that had least
            self._at = sorted(self._had.values())[len(self._had) // 2]
        self._had = {key: had for key, had in self._had.items() if had > self._at}
        self._owed = {line: owed for line, owed in self._owed.items() if owed > 0}

    def share(self, key: str, keys: Iterable[str]) -> float:
        return self._weight(key) / sum(map(self._weight, keys))

    def _price(self, key: str) -> float:
        return 1 / self._weight(key)

    def _weight(self, key: str) -> float:
        return self.weights.get(key, 1.0)


def _next(
    key: str, priorities: Sequence[int], owed: dict[FairLine, int]
) -> tuple[FairLine, tuple[int, ...]]:
    """Return the best priority's line, or the one that is owed most if it is owed a task."""
    best, *behind = (FairLine(key, priority) for priority in priorities)
    line = max(behind, key=lambda one: owed.get(one, 0), default=best)
    if owed.get(line, 0) < EVERY:
        line = best
    waiting = tuple(one.priority for one in behind)
    _charge(line, waiting, owed)
    return line, waiting


def _charge(line: FairLine, behind: Sequence[int], owed: dict[FairLine, int]) -> None:
    for priority in behind:
        waiting = FairLine(line.key, priority)
        owed[waiting] = owed.get(waiting, 0) + 1
    if line.priority in behind:
        owed[line] -= EVERY
