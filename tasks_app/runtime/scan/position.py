"""Front: where a pass over due rows begins to read, at the front of the index or near its end.

What is over leaves dead entries at the front. They are gone in a moment, unless somebody's old
transaction keeps vacuum from its work: then each pass from the front reads all of them, more and
more. Passes that begin there are therefore made rarer as they become slower. Those in between read
what became due since a pass left nothing behind; what is older and was committed late, locked,
given back, paused or dated back meanwhile, the next whole pass finds.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from tasks_app.pool.dispatch.scan import Due
from tasks_app.pool.fragments.scan_position import Place

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


class QueuePositions:
    """The places of one dispatcher."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], Place] = {}

    @property
    def places(self) -> Mapping[tuple[str, int], Place]:
        """Where to go on, by queue and priority; none: at the front."""
        return self._places

    def cover(self, queue: str) -> bool:
        """Whether what is out of this queue lies before its bookmarks."""
        return any((queue, priority) in self._places for priority in range(10))

    def forget(self) -> None:
        """Begin at the front again."""
        self._places = {}

    def move(self, found: Due, last_id: int) -> None:
        """Remember that all rows up to this one need not be read again for now."""
        number = found.ids.index(last_id) + 1
        at = 0
        while at < number:  # the last row of each priority among them
            priority = found.priorities[at]
            at = bisect_right(found.priorities, priority, at, number)
            self._places[found.queue, priority] = (found.scan_at[at - 1], found.ids[at - 1])


PASS_REST = 20
"""Passes that do not go on take a twentieth of the time while there is enough to do …"""


class Start(NamedTuple):
    """Where a pass begins."""

    within: timedelta | None = None
    """It reads what is due for no longer; None: all."""
    goes_on: bool = False
    """Behind the places."""


class ScanPasses:
    """Those of one kind: for the same queues and names."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, int], Place] = {}
        """Where the last rows stood, by queue and priority; each pass moves them on."""
        self._front = ScanPosition()
        self._back_at = 0.0
        self._lately_s = 0.0
        """How long the last pass took that did not go on."""

    def start(self, began: float) -> Start:
        """Return where a pass has to start that begins at this instant."""
        if self.places and began < self._back_at:
            return Start(goes_on=True)
        self.places.clear()
        return Start(self._front.within(began))

    def was_read(self, began: float, start: Start, *, left: int) -> None:
        """Learn from a pass that is over, and may have left some behind.

        One slow pass says nothing: the machine, or the database, may have stood still meanwhile.
        """
        if not left:
            self.places.clear()
        if start.goes_on:
            return
        self._front.was_read(began, start.within, left=left)
        now = time.monotonic()
        took, self._lately_s = min(now - began, self._lately_s), now - began
        self._back_at = now + min(PASS_REST * took, LONGEST_REST_S)
