"""Passes: where claims from the pool begin to read while there is enough to do.

What was claimed leaves dead entries at the front of the index until vacuum has passed. A pass that
finds something is therefore followed by some that go on behind it. Every so often one begins where
:mod:`front` says, and finds what has come back, or was committed late, before the places.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import NamedTuple

from tasks_app.pool.fragments.scan_position import Place
from tasks_app.runtime.scan.position import LONGEST_REST_S, ScanPosition

REST = 20
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
        self._back_at = now + min(REST * took, LONGEST_REST_S)
