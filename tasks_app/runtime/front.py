"""Front: where a claim from the pool begins to read, at the front of the index or near its end.

What is over leaves dead entries at the front. They are gone in a moment, unless somebody's old
transaction keeps vacuum from its work: then each pass from the front reads all of them, more and
more. Passes that begin there are therefore made rarer as they become slower. Those in between read
what became due since a pass found nothing to take; what is older and was committed late, locked,
paused or dated back meanwhile, the next whole pass finds.
"""

from __future__ import annotations

import time
from datetime import timedelta

SLOW_S = 0.01
"""A whole pass that is faster is no burden: then all are whole."""
REST = 50
"""Slow whole passes take a fiftieth of the time …"""
LONGEST_REST_S = 30.0
"""… unless they are so slow that their rows would wait too long."""
MARGIN_S = 5.0
"""So late a transaction may commit without having to wait for a whole pass."""


class Front:
    """The passes of one kind: for the same queues and names."""

    def __init__(self) -> None:
        self._whole_at = 0.0
        self._empty_at: float | None = None

    def within(self, began: float) -> timedelta | None:
        """Return how far back a pass has to read that begins at this instant; None: all."""
        if self._empty_at is None or began >= self._whole_at:
            return None
        return timedelta(seconds=began - self._empty_at + MARGIN_S)

    def was_read(self, began: float, within: timedelta | None, *, found: int) -> None:
        """Learn from a pass that is over."""
        now = time.monotonic()
        if within is None:
            took = now - began
            rest = min(REST * took, LONGEST_REST_S) if took > SLOW_S else 0.0
            self._whole_at = now + rest
        if not found:
            self._empty_at = began
