"""Queue throughput: how fast messages are carried out, and how far ahead to publish.

A few messages for each child are enough while tasks are slow. Fast tasks use them up between two
passes; then as much is published as was lately carried out in half a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks_app.pool.dispatch.ledger import Dispatch

AHEAD_S = 0.4
"""The most work that is out: a task with a better priority waits that long for it."""
_WEIGHT = 0.5
"""The newest look's part of the moving average; a faster one replaces the average at once."""
_BLINK_S = 0.05
"""Looks that follow each other sooner say little: a message of 500 takes that long as a whole."""
SOONEST_S = 0.01
GROWTH = 2.0
"""How much faster it may be than it looked when nothing was left of what was out."""
_TRUSTED = 2.0
"""An estimate is used for this many times the watched span: first tasks are slow."""


class QueueThroughput:
    """What one queue had out at the last look, and what came of it."""

    def __init__(self) -> None:
        self._out: dict[int, int] = {}
        self._looked_at: float | None = None
        self._watched_s = 0.0
        self._rough = True
        self.per_s = 0.0
        """Ids worked off in a second, lately."""
        self.largest = 1
        """How many ids the largest of the last messages held."""
        self.made = 0
        """How many messages went out last."""
        self.slow = False
        """Whether they held fewer than they could, because their tasks take time."""

    def look(self, out: Sequence[Dispatch], at: float) -> None:
        """Learn from what is left of what was out."""
        left = {dispatch.id: len(dispatch.ids) for dispatch in out}
        if self._looked_at is not None and self._out:
            took_s = max(_BLINK_S / 10, at - self._looked_at)
            gone = sum(number for id_, number in self._out.items() if id_ not in left)
            if gone == sum(self._out.values()):  # nobody knows since when it is empty
                self.per_s, self._rough = max(self.per_s, GROWTH * gone / took_s), True
            elif took_s < _BLINK_S:
                return
            else:
                self._watched_s = took_s
                rate = gone / took_s
                self._rough = rate > GROWTH * self.per_s  # it may well go on to rise
                self.per_s = max(rate, self.per_s + _WEIGHT * (rate - self.per_s))
        self._out, self._looked_at = left, at

    def sent(self, made: Sequence[Dispatch]) -> None:
        self._out |= {dispatch.id: len(dispatch.ids) for dispatch in made}
        self.made = len(made)
        self.largest = max((len(dispatch.ids) for dispatch in made), default=self.largest)

    def ahead(self, size: int) -> int:
        """Return how many messages of that size are worked off in the time to publish ahead.

        Where none is out, a few at once are better than many a moment later.
        """
        most = int(self.per_s * AHEAD_S / size)
        return most if self._out else min(most, int(GROWTH * self.made))

    def half_s(self) -> float | None:
        """Return when half of what is out will be worked off; None: nobody knows."""
        if not self.per_s or not self._out:
            return None
        if self._rough:
            return _BLINK_S
        half_s = sum(self._out.values()) / 2 / self.per_s
        return max(SOONEST_S, min(half_s, _TRUSTED * self._watched_s))
