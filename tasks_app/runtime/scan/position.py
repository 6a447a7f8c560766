"""Front: where a pass over due rows begins to read, at the front of the index or near its end.

What is over leaves dead entries at the front. They are gone in a moment, unless somebody's old
transaction keeps vacuum from its work: then each pass from the front reads all of them, more and
more. Passes that begin there are therefore made rarer as they become slower. Those in between read
what became due since a pass left nothing behind; what is older and was committed late, locked,
given back, paused or dated back meanwhile, the next whole pass finds.
"""

from __future__ import annotations

import time
from datetime import timedelta

SLOW_S = 0.01
"""A whole pass that is faster is no burden: then all are whole."""
REST = 200
"""Slow whole passes take a two-hundredth of the time, so that of a hundred hardly one is slow …"""
LONGEST_REST_S = 10.0
"""… unless they are so slow that their rows would wait too long."""
MARGIN_S = 5.0
"""So late a transaction may commit without having to wait for a whole pass."""


class ScanPosition:
    """The passes of one kind: for the same queues and names."""

    def __init__(self, *, slow_s: float = SLOW_S, rest: float = REST) -> None:
        self._slow_s = slow_s
        self._rest = rest
        self._whole_at = 0.0
        self._lately_s = 0.0
        """How long the last whole pass took."""
        self._empty_at: float | None = None

    def within(self, began: float) -> timedelta | None:
        """Return how far back a pass has to read that begins at this instant; None: all."""
        if self._empty_at is None or began >= self._whole_at:
            return None
        return timedelta(seconds=began - self._empty_at + MARGIN_S)

    def was_read(self, began: float, within: timedelta | None, *, left: int) -> None:
        """Learn from a pass that is over, and may have left some behind.

        One slow pass says nothing: the machine, or the database, may have stood still meanwhile.
        """
        now = time.monotonic()
        if within is None:
            took = min(now - began, self._lately_s)
            self._lately_s = now - began
            rest = min(self._rest * took, LONGEST_REST_S) if took > self._slow_s else 0.0
            self._whole_at = now + rest
        if not left:
            self._empty_at = began
