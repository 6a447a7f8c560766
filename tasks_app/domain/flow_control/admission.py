"""Which tasks pass the gates when there is room, and in which order a fair queue starts them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit


class Waiting(NamedTuple):
    """A due task, and the gates that it must pass."""

    task_id: int
    gates: tuple[Gate, ...]
    locks: Mapping[str, Sequence[str] | Mapping[str, int]] | None = None  # as its row has them
    weight: int | None = None


def tokens_of(gate: Gate, weight: int | None) -> int:
    """Return what a start takes from the gate's rate: weights count for limit keys alone."""
    return weight or 1 if gate.kind is GateKind.KEY else 1


class GateRoom(Protocol):
    """What a gate has room for."""

    def admits(self, task_id: int) -> bool: ...

    def enter(self, task_id: int, tokens: int) -> None:
        """Note that the task passes, and takes so many tokens."""

    def hold(self, task_id: int) -> None:
        """Note that the task has to wait."""


NEVER = datetime.min  # noqa: DTZ901  not read yet


class TokenBucket(NamedTuple):
    tokens: float | None  # left `since_s` seconds ago; None: nothing was ever taken
    since_s: float
    at: datetime


@dataclass(slots=True, eq=False)
class Capacity:
    free: float  # how many more may run; infinity: any number
    head: int | None = None  # the only task that may pass an order key
    ordered: bool = False
    leaves_s: float = math.inf  # seconds until its head expires, and the next one may pass
    tokens: float = math.inf  # in its bucket; below 0: tasks have taken more than there was
    running: int = 0
    since: datetime | None = None  # start of the oldest run; None: nothing runs
    at: datetime = NEVER
    left: float = field(init=False)  # tokens, without those that tasks which pass will take

    def __post_init__(self) -> None:
        self.left = self.tokens

    @property
    def open(self) -> float:
        """How many tasks may pass, if each takes one token; below 1: none."""
        return max(0.0, min(self.free, self.left))

    def admits(self, task_id: int) -> bool:
        return self.open >= 1 and (not self.ordered or task_id == self.head)

    def enter(self, task_id: int, tokens: int) -> None:  # noqa: ARG002  any task takes one place
        self.free -= 1
        self.left -= tokens  # more than there is: else one above the burst would wait for ever

    def hold(self, task_id: int) -> None:
        """Nothing: who waits takes no place."""


def capacity_of(
    gate: Gate, limit: Limit | None, running: int, head: int | None, bucket: TokenBucket | None
) -> Capacity:
    """Return the room of a gate, from its running tasks and its bucket."""
    if gate.kind is GateKind.ORDER:
        free = 1.0 if running == 0 and head is not None else 0.0
        return Capacity(free, head, ordered=True, running=running)
    if limit is None:
        return Capacity(math.inf, running=running)
    free = math.inf if limit.most is None else max(0.0, limit.most - running)
    if limit.burst is None:
        return Capacity(free, running=running)
    left, since_s, at = bucket or TokenBucket(None, 0.0, NEVER)
    tokens = limit.tokens(left, since_s)
    return Capacity(free, tokens=tokens, running=running, at=at)


@dataclass(slots=True)
class Admission:
    """The tasks that may run, and those that each gate holds."""

    ids: list[int] = field(default_factory=list)
    held: dict[Gate, list[int]] = field(default_factory=dict)
    behind: set[Gate] = field(default_factory=set)  # all gates of the held tasks


def admit(waiting: Sequence[Waiting], rooms: Mapping[Gate, GateRoom]) -> Admission:
    """Admit the tasks with room at all of their gates, in this order; hold the others.

    A task with a gate that is not among the rooms is neither: it is checked again later.
    """
    admission = Admission()
    for task_id, gates, _, weight in waiting:
        passed: list[tuple[GateRoom, int]] = []
        for gate in gates:
            room = rooms.get(gate)
            if room is None:
                break
            if not room.admits(task_id):
                admission.held.setdefault(gate, []).append(task_id)
                admission.behind.update(gates)
                if gate.kind is GateKind.LOCK:  # it gets a place in the lines before all its locks
                    for each in gates:
                        if each in rooms:
                            rooms[each].hold(task_id)
                break
            passed.append((room, tokens_of(gate, weight)))
        else:
            for room, tokens in passed:
                room.enter(task_id, tokens)
            admission.ids.append(task_id)
    return admission


EVERY = 20  # a priority behind a better one gets one of this many tasks of its key: 5 %
REMEMBERED = 10_000  # keys of a queue; a forgotten one starts where the others are


class FairQueueKey(NamedTuple):
    """Tasks of one queue that wait behind each other."""

    key: str  # empty: the tasks without a key
    priority: int


class PickedTask(NamedTuple):
    id: int
    line: FairQueueKey
    behind: tuple[int, ...]  # worse priorities of its key that had to wait for it


@dataclass(slots=True)
class Shares:
    """The shares of the keys of one queue, as far as one dispatcher has dispatched them."""

    weights: Mapping[str, float] = field(default_factory=dict)  # other than 1
    remembered: int = REMEMBERED
    _had: dict[str, float] = field(default_factory=dict)  # tasks / weight; only differences count
    _owed: dict[FairQueueKey, int] = field(
        default_factory=dict
    )  # tasks that passed a waiting priority
    _at: float = 0.0  # `_had` of the key with the last turn

    def order(self, waiting: Mapping[FairQueueKey, Sequence[int]], most: int) -> list[PickedTask]:
        """Return up to ``most`` of the ids in dispatch order; :meth:`went` charges their keys."""
        left = {line: list(reversed(ids)) for line, ids in waiting.items() if ids}
        priorities: dict[str, list[int]] = {}
        for line in sorted(left):
            priorities.setdefault(line.key, []).append(line.priority)
        turns = [(max(self._had.get(key, 0.0), self._at), key) for key in priorities]
        heapify(turns)
        owed = dict(self._owed)
        picks: list[PickedTask] = []
        while turns and len(picks) < most:
            had, key = heappop(turns)
            line, behind = _next(key, priorities[key], owed)
            picks.append(PickedTask(left[line].pop(), line, behind))
            if not left[line]:
                priorities[key].remove(line.priority)
            if priorities[key]:
                heappush(turns, (had + 1 / self._weight(key), key))
        return picks

    def went(self, picks: Iterable[PickedTask]) -> None:
        """Charge the keys for the dispatched tasks, the first ones of an order."""
        for pick in picks:
            key = pick.line.key
            self._at = max(self._had.get(key, 0.0), self._at)
            self._had[key] = self._at + 1 / self._weight(key)
            _charge(pick.line, pick.behind, self._owed)
        if len(self._had) > self.remembered:  # forget the half of the keys with the least
            self._at = sorted(self._had.values())[len(self._had) // 2]
        self._had = {key: had for key, had in self._had.items() if had > self._at}
        self._owed = {line: owed for line, owed in self._owed.items() if owed > 0}

    def share(self, key: str, keys: Iterable[str]) -> float:
        return self._weight(key) / sum(map(self._weight, keys))

    def _weight(self, key: str) -> float:
        return self.weights.get(key, 1.0)


def _next(
    key: str, priorities: Sequence[int], owed: dict[FairQueueKey, int]
) -> tuple[FairQueueKey, tuple[int, ...]]:
    """Return the line of the best priority, or the most owed one if it is owed a task."""
    best, *behind = (FairQueueKey(key, priority) for priority in priorities)
    line = max(behind, key=lambda one: owed.get(one, 0), default=best)
    if owed.get(line, 0) < EVERY:
        line = best
    waiting = tuple(one.priority for one in behind)
    _charge(line, waiting, owed)
    return line, waiting


def _charge(line: FairQueueKey, behind: Sequence[int], owed: dict[FairQueueKey, int]) -> None:
    for priority in behind:
        waiting = FairQueueKey(line.key, priority)
        owed[waiting] = owed.get(waiting, 0) + 1
    if line.priority in behind:
        owed[line] -= EVERY
