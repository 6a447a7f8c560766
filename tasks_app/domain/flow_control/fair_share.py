"""Fair shares: the order of a fair queue's tasks, so that each key has its share of what is done.

Between keys by weight: the key that is furthest behind comes next. A key that was idle begins where
the others are, and saves nothing up; what one leaves, the others have. Within a key by priority,
but each priority that waits behind a better one is sure of a part of what its key gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

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
