"""Delay look-ahead: the leader's own hints announce what becomes due before the next passes.

It remembers in its memory what it announced, and only to save work: hints may be lost, and the scan
finds each task when it is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.pool.dispatch.upcoming import Upcoming, upcoming
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.hints.sender import Hint

AHEAD = timedelta(seconds=0.5)
"""Beyond the scan's interval: a pass that is late leaves no gap."""
MOST = 1_000
"""Hints per pass, the nearest first; the scan finds the rest."""
SAME_S = 0.05
"""Two estimates of one instant differ by less: each is late by its own way from the database."""


class DelayLookahead:
    """One dispatcher's; ``most`` tasks are announced in a pass."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._span = settings.scan_interval + AHEAD
        self._clock = clock
        self._announced: dict[int, float] = {}
        """The instants of tasks, by ``clock``."""
        self.most = MOST

    def look(
        self, connection: Connection, queues: Sequence[str], *, now: datetime | None = None
    ) -> float | None:
        """Announce what becomes due soon; return the seconds until the first that is not announced.

        Nothing is announced of a queue that gets no hints just now. None: all is announced.
        """
        near = upcoming(connection, queues, self._span, self.most, now=now)
        read_at = self._clock()  # after the database's answer: no hint is early
        over = read_at - SAME_S
        self._announced = {i: due_at for i, due_at in self._announced.items() if due_at > over}
        hinted = {queue for queue in {task.queue for task in near} if HINTS.takes(queue)}
        for task in near:
            if task.queue in hinted:
                self._announce(task, read_at)
        return next((task.due_in_s for task in near if task.queue not in hinted), None)

    def _announce(self, task: Upcoming, read_at: float) -> None:
        due_at = read_at + task.due_in_s
        known = self._announced.get(task.id)
        if known is None or abs(known - due_at) > SAME_S:
            self._announced[task.id] = due_at
            HINTS.offer([Hint(task.queue, task.id, time.monotonic() + task.due_in_s)])
