"""Writes the batches of a buffer, through outages, and none of them twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.pool.connection.sessions import current_transaction_id, has_committed
from tasks_app.runtime.api.producer import create_rows
from tasks_app.runtime.db.errors import is_unanswered, sqlstate

log = quiet_logger(__name__)

_REFUSALS = ("22", "23")
"""SQLSTATE classes of data that no later try can write (PostgreSQL 18 docs, appendix A)."""


class BufferWriter:
    """For one thread."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        patience_s: float,
        pause: Callable[[], bool],
        lost: Callable[[Sequence[TaskRow], BaseException], None],
    ) -> None:
        """``pause``: wait before the next try; False: there is to be none."""
        self._engine = engine
        self._patience_s = patience_s
        self._pause = pause
        self._lost = lost
        self._doubt: str | None = None
        """The transaction whose COMMIT was not answered."""
        self._retries = 0

    def write(self, rows: Sequence[TaskRow]) -> int:
        """Write the rows and return how many; the others were reported as lost.

        A transaction per batch; a batch with rows that the table refuses is written in halves.
        """
        ends = time.monotonic() + self._patience_s
        while True:
            try:
                self._commit(rows)
            except Exception as error:  # the database's, its driver's, or our own
                if self._is_refused(error):
                    if len(rows) > 1:
                        half = len(rows) // 2
                        return self.write(rows[:half]) + self.write(rows[half:])
                    ends = 0.0
                elif self._retries == 0:
                    log.warning("a buffer cannot write (%s): it tries again", type(error).__name__)
                if time.monotonic() >= ends or not self._pause():
                    self._doubt = None
                    self._lost(rows, error)
                    return 0
                self._retries += 1
            else:
                self._retries = 0
                return len(rows)

    def _commit(self, rows: Sequence[TaskRow]) -> None:
        with Session(self._engine()) as session:
            if self._doubt is not None and self._was_written(session):
                return
            transaction = current_transaction_id(session.connection())
            create_rows(session, rows)
            try:
                session.commit()
            except Exception as error:  # also one that a listener raised
                if not isinstance(error, DBAPIError) or is_unanswered(error):
                    self._doubt = transaction
                raise

    def _was_written(self, session: Session) -> bool:
        committed = has_committed(session.connection(), str(self._doubt))
        if committed is None:
            raise InterruptedError("The transaction is not over yet.")
        self._doubt = None
        return committed

    def _is_refused(self, error: Exception) -> bool:
        return self._doubt is None and sqlstate(error).startswith(_REFUSALS)
