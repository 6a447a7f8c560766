"""Delay look-ahead: what becomes due soon goes to the delay index, or wakes the scan up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.dispatch.upcoming import Upcoming, upcoming
from tasks_app.runtime.publisher import DelayHinter

log = quiet_logger(__name__)

AHEAD = timedelta(seconds=10)
"""Longer than it takes until another leader scans, so that no task is late meanwhile. What is due
later is entered later: the index stays small and up to date."""
MOST = 1_000
"""Entries per pass, the nearest first: 2 ms of Redis. The rest is entered by later passes."""
STAND_BACK_S = 5.0
"""After an index that did not answer: the scan goes on without it."""


class DelayLookahead:
    """One dispatcher's; ``most`` entries are made in a pass."""

    def __init__(self, settings: Settings, index: DelayHinter | None) -> None:
        self._index = index
        self._interval = settings.scan_interval
        self.not_before = 0.0
        self.most = MOST

    def look(
        self, connection: Connection, queues: Sequence[str], *, now: datetime | None = None
    ) -> list[Upcoming]:
        """Return what comes, nearest first; without an index only what comes next."""
        if self._usable:
            return upcoming(connection, queues, max(AHEAD, self._interval), self.most, now=now)
        return upcoming(connection, queues, self._interval, now=now)

    def next_due_s(self, near: Sequence[Upcoming]) -> float | None:
        """Enter what comes; return in how many seconds to scan for it all the same, or None."""
        if not near:
            return None
        if self._usable and self._index is not None:
            try:
                if self._index.enter(near):
                    return None
            except Exception as error:
                self.not_before = time.monotonic() + STAND_BACK_S
                log.info("the delay index did not answer: %s", type(error).__name__)
        return near[0].due_in_s

    @property
    def _usable(self) -> bool:
        return self._index is not None and time.monotonic() >= self.not_before
