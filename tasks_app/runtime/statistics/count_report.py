"""The count report: what a process has counted, written for the leader to add up."""

from __future__ import annotations

import time
from collections.abc import Callable

from tasks_app.pool.connection import clock as database_clock
from tasks_app.pool.statistics.parts import write
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.statistics import TASK_COUNTS
from tasks_app.runtime.statistics import TaskCounts

EVERY_S = 5.0
"""A process that is killed loses so much, until the hour is reconciled with the pools."""


class CountReport:
    """A duty of the housekeeper; idle, it costs a look at the clock."""

    def __init__(
        self,
        database: Database,
        counts: TaskCounts = TASK_COUNTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._counts = counts
        self._clock = clock
        self._look_at = 0.0

    def write_counts(self, *, last: bool = False) -> None:
        """Write what has changed, every few seconds, or now if it is the ``last`` time.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: nobody knows whether it was written; it is repeated.
        """
        now = self._clock()
        if now < self._look_at and not last:
            return
        self._look_at = now + EVERY_S
        with self._counts.writing:
            if not self._counts.knows_time:
                self._ask()
            parts = self._counts.news()
            if not parts:
                return
            with self._database.begin() as connection:
                asked_at = time.monotonic()
                said_s = database_clock.tell(connection)
                write(connection, self._counts.slot, parts)
            self._counts.written(parts)
            self._counts.heard(said_s, asked_at)

    def _ask(self) -> None:
        asked_at = time.monotonic()
        with self._database.begin() as connection:
            said_s = database_clock.tell(connection)
        self._counts.heard(said_s, asked_at)
