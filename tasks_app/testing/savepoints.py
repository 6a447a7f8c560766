"""A worker's connection on the session of a test, where its transaction is a savepoint.

So a worker's own sessions and transactions work on it, and refuse here what they refuse there.
"""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle_success import LastWord
from tasks_app.runtime.handler_db.ends import COMMIT, UNDOING, RunEnd
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.handler_driver import NOBODY
from tasks_app.runtime.handler_db.handler_statements import ENDED, ends_transaction
from tasks_app.runtime.handler_db.loop_connection import LoopConnection

BEGIN = "SAVEPOINT tasks_app_runs"
"""Also the COMMIT at the end: what is before the newest savepoint of a name stays."""
COMMIT_AND_BEGIN = f"RELEASE {BEGIN}; {BEGIN}"
ROLLBACK = f"ROLLBACK TO {BEGIN}"
NO_TASK = Settlement(Fence(0, 0, UUID(int=0)), Event.SUCCEED, 0, 0)
"""The outcome of a run that is no task's: nothing is written."""
_DOLLARS = re.compile(r"\$(\w*)\$.*?\$\1\$", re.DOTALL)


class _Inner(psycopg.Connection[Any]):
    """Begins and ends savepoints; the rest of the session is the test's."""

    broken = False

    def commit(self) -> None:
        psycopg.Cursor(self).execute(COMMIT_AND_BEGIN)

    def rollback(self) -> None:
        psycopg.Cursor(self).execute(ROLLBACK)

    def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  psycopg's
        """Stay as it is."""

    def set_isolation_level(self, value: psycopg.IsolationLevel | None) -> None:
        """Leave that of the test."""

    def close(self) -> None:
        """Leave the session to the test, with nothing under way."""
        pgconn, self.pgconn = self.pgconn, NOBODY
        if pgconn.transaction_status == TransactionStatus.ACTIVE:
            pgconn.get_cancel().cancel()
            while (result := pgconn.get_result()) is not None:
                if result.status == ExecStatus.COPY_IN:
                    pgconn.put_copy_end(b"The run is over.")
                while result.status == ExecStatus.COPY_OUT and pgconn.get_copy_data(0)[0] > 0:
                    pass


class _Outer(HandlerConnection):
    """Ends runs within the transaction of the test."""

    is_spoiled = True
    """So that no pool keeps it."""
    restore = b""
    """A statement that takes back what the handler has set."""

    def cut_off(self) -> None:
        """Close it; the line is the test's."""
        self.close()

    def _rolls_back(self) -> bool:
        """Not before it is lent: SQLAlchemy rolls back when it has looked at the server first."""
        return hasattr(self, "names") and super()._rolls_back()

    def _made_ready(self, ending: RunEnd) -> Any:
        ready = super()._made_ready(ending)
        if ending.settlement is NO_TASK:
            return ready._replace(last=LastWord(b"", b"SELECT WHERE false", [], []))
        return ready

    def _send_ours(self, name: bytes) -> None:
        if name == COMMIT or name in UNDOING:
            self.pgconn.send_query_params(BEGIN.encode() if name == COMMIT else self.restore, None)
        else:
            super()._send_ours(name)

    def _commit(self, permit: RunEnd) -> None:
        super()._commit(permit)
        permit.called.clear()  # no worker sees these tasks

    def judge(self, statement: Any) -> None:
        """Refuse also what a worker would only find out when the rows of the test are committed."""
        super().judge(statement)
        if isinstance(statement, str) and ends_transaction(_DOLLARS.sub("''", statement)):
            self.ended = True
            raise Fail(ENDED)


class SavepointConnection(_Outer, _Inner):
    """For plain handlers."""


class LoopSavepointConnection(_Outer, LoopConnection, _Inner):
    """For async handlers."""
