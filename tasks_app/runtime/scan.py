"""Scan positions: where a pass over due rows begins to read.

Completed rows leave dead entries at the front of the index. Vacuum soon removes them, unless an
old transaction prevents it: then each pass from the front reads all of them, and their number
grows. So passes that begin there are made rarer as they become slower. Those in between read what
became due since a pass left nothing behind. The next whole pass finds what is older and was
committed late, locked, given back, paused or dated back meanwhile.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple

from tasks_app.pool.dispatch.scan import DueRows
from tasks_app.pool.fragments.scan_position import Place
from tasks_app.runtime.scan.throttle import PACES, Pace, PollPaces, Throttle

MARGIN_S = 5.0
"""A row that commits at most this late does not wait for a whole pass."""


class ScanPosition:
    """The passes of one kind: for the same queues and names."""

    def __init__(
        self, pace: Pace = PACES.front, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._throttle = Throttle(pace)
        self._clock = clock
        self._whole_at = 0.0
        self._empty_at: float | None = None

    def within(self, began: float) -> timedelta | None:
        """Return how far back a pass has to read that begins at this instant; None: all."""
        if self._empty_at is None or began >= self._whole_at:
            return None
        return timedelta(seconds=began - self._empty_at + MARGIN_S)

    def was_read(self, began: float, within: timedelta | None, *, left: int) -> None:
        """Learn from a pass that is over, and left so many rows behind."""
        if within is None:
            now = self._clock()
            self._whole_at = now + self._throttle.rest_after(now - began)
        if not left:
            self._empty_at = began


class QueuePositions:
    """The places of one dispatcher."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], Place] = {}

    @property
    def places(self) -> Mapping[tuple[str, int], Place]:
        """Where to go on, by queue and priority; none: at the front."""
        return self._places

    def cover(self, queue: str) -> bool:
        """Whether the queue has a place, before which lies what was published of it."""
        return any((queue, priority) in self._places for priority in range(10))

    def forget(self) -> None:
        """Begin at the front again."""
        self._places = {}

    def move(self, found: DueRows, number: int) -> None:
        """Remember that so many rows need not be read again for now."""
        at = 0
        while at < number:  # the last row of each priority among them
            priority = found.priorities[at]
            at = bisect_right(found.priorities, priority, at, number)
            self._places[found.queue, priority] = (found.scan_at[at - 1], found.ids[at - 1])


class Start(NamedTuple):
    """Where a pass begins."""

    within: timedelta | None = None
    """It reads what is due for no longer; None: all."""
    goes_on: bool = False
    """It begins behind the places of the pass before."""


class ScanPasses:
    """Those of one kind: for the same queues and names.

    While there is enough to do they go on where the last one ended.
    """

    def __init__(
        self, paces: PollPaces = PACES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.places: dict[tuple[str, int], Place] = {}
        """Where the last rows stood, by queue and priority; each pass moves them on."""
        self._throttle = Throttle(paces.back)
        self._clock = clock
        self._front = ScanPosition(paces.front, clock)
        self._back_at = 0.0

    def start(self, began: float) -> Start:
        """Return where a pass has to start that begins at this instant."""
        if self.places and began < self._back_at:
            return Start(goes_on=True)
        self.places.clear()
        return Start(self._front.within(began))

    def was_read(self, began: float, start: Start, *, left: int) -> None:
        """Learn from a pass that is over, and left so many rows behind."""
        if not left:
            self.places.clear()
        if start.goes_on:
            return
        self._front.was_read(began, start.within, left=left)
        now = self._clock()
        self._back_at = now + self._throttle.rest_after(now - began)
