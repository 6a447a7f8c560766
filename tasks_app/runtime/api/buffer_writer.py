"""Batches on their way into the pool, through outages, and none of them twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.pool.connection.transactions import has_committed, this_transaction
from tasks_app.runtime.api.producer import create_rows
from tasks_app.runtime.db.errors import is_unanswered, patience_s

log = quiet_logger(__name__)

Lost = Callable[[Sequence[TaskRow], BaseException], None]
_REFUSALS = ("22", "23")
"""SQLSTATE classes of data that no later try can write (PostgreSQL 18 docs, appendix A)."""


class Delivery:
    """Writes batches for one thread."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        patience_s: float,
        wait: Callable[[float], bool],
        lost: Lost,
    ) -> None:
        self._engine = engine
        self._patience_s = patience_s
        self._wait = wait
        self._lost = lost
        self._doubt: str | None = None
        """The transaction whose COMMIT was not answered."""
        self.retries = 0

    def deliver(self, rows: Sequence[TaskRow]) -> int:
        """Write the rows and return how many; the others are lost, and whose loss it is was told.

        A transaction per batch; a batch with rows that the table refuses is written in halves.
        """
        ends = time.monotonic() + self._patience_s
        while True:
            try:
                self._write(rows)
            except Exception as error:  # of the database, of its driver, or of this program
                if self._is_refused(error):
                    if len(rows) > 1:
                        half = len(rows) // 2
                        return self.deliver(rows[:half]) + self.deliver(rows[half:])
                    ends = 0.0
                elif self.retries == 0:
                    log.warning("a buffer cannot write (%s): it tries again", type(error).__name__)
                if time.monotonic() >= ends or not self._wait(patience_s()):
                    self._doubt = None
                    self._lost(rows, error)
                    return 0
                self.retries += 1
            else:
                self.retries = 0
                return len(rows)

    def _write(self, rows: Sequence[TaskRow]) -> None:
        with Session(self._engine()) as session:
            if self._doubt is not None and self._was_written(session):
                return
            transaction = this_transaction(session.connection())
            create_rows(session, rows)
            try:
                session.commit()
            except Exception as error:  # of a listener to commits, too
                if not isinstance(error, DBAPIError) or is_unanswered(error):
                    self._doubt = transaction
                raise

    def _was_written(self, session: Session) -> bool:
        """Ask what became of the COMMIT that was not answered."""
        committed = has_committed(session.connection(), str(self._doubt))
        if committed is None:
            raise InterruptedError("The transaction is not over yet.")
        self._doubt = None
        return committed

    def _is_refused(self, error: Exception) -> bool:
        state = getattr(getattr(error, "orig", None), "sqlstate", None)
        return self._doubt is None and str(state).startswith(_REFUSALS)
