"""Writes the log lines of runs, many together, soon after the runs' ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, ProgrammingError

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.tasks.log_lines import LinesOfRun, keep_lines
from tasks_app.runtime.db.pending_writes import PendingWrite

log = quiet_logger(__name__)
MOST = 1_000
"""Runs whose lines wait for a database that is away; those of others are left out."""


class LineWriter:
    """One child's; its threads add to it, its housekeeper writes."""

    def __init__(self, write_later: Callable[[PendingWrite], object]) -> None:
        self._write_later = write_later
        self._lock = threading.Lock()
        self._open: list[LinesOfRun] | None = None

    def keep(self, run: LinesOfRun) -> None:
        with self._lock:
            if self._open is None:
                batch: list[LinesOfRun] = []
                self._open = batch
                self._write_later(lambda connection: self._write(connection, batch))
            if len(self._open) < MOST:
                self._open.append(run)

    def _write(self, connection: Connection, batch: list[LinesOfRun]) -> None:
        """Write a batch; it is called again while the database does not answer."""
        with self._lock:
            if self._open is batch:
                self._open = None
        try:
            keep_lines(connection, batch)
        except (DataError, ProgrammingError) as error:  # it never will: a right is missing, say
            log.warning("log lines of %s runs are not kept: %s", len(batch), brief(error))
