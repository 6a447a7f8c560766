"""The transaction of a test: lent to a worker's parts, whose own transactions are savepoints in it.

So a worker's own sessions and transactions work on it, and refuse here what they refuse there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any
from uuid import UUID

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tasks_app.domain.errors import InvalidConnectionError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.connection.execute import commits_itself
from tasks_app.pool.runs.settle_success import SuccessStatement
from tasks_app.runtime.db.connections import is_raw, unwrapped, writing_connection_of
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.transaction import Transaction
from tasks_app.runtime.execution.invocation import AsyncLane, Lane, SyncLane
from tasks_app.runtime.handler_db import loop_connection
from tasks_app.runtime.handler_db.ends import COMMIT, UNDOING, RunEnd
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection, HandlerCursor
from tasks_app.runtime.handler_db.handler_driver import NO_CONNECTION
from tasks_app.runtime.handler_db.lending import driver_of
from tasks_app.runtime.handler_db.loop_connection import LoopConnection, LoopCursor
from tasks_app.runtime.handler_db.statements import ENDED, ends_transaction
from tasks_app.runtime.hints import UNHEARD

BEGIN = "SAVEPOINT tasks_app_runs"
"""Also the COMMIT at the end: what is before the newest savepoint of a name stays."""
COMMIT_AND_BEGIN = f"RELEASE {BEGIN}; {BEGIN}"
ROLLBACK = f"ROLLBACK TO {BEGIN}"
NO_TASK = Settlement(Fence(0, 0, UUID(int=0)), Event.SUCCEED, 0, 0)
"""The outcome of a run that is no task's: nothing is written."""
_DOLLARS = re.compile(r"\$(\w*)\$.*?\$\1\$", re.DOTALL)
_AROUND = "SAVEPOINT tasks_app_starts"
_RESTORE = """SELECT format(
    'SELECT set_config(''role'', %%1$L, false), set_config(''search_path'', %%2$L, false)
    WHERE (current_setting(''role''), current_setting(''search_path'')) <> (%%1$L, %%2$L)',
    current_setting('role'), current_setting('search_path'))"""
"""Makes the statement that takes back what decides the tables that a statement meets."""
_AUTOCOMMIT = (
    "This connection is in autocommit, so there is no transaction that the test could roll back. "
    "Open one, or leave out the session: drain() works on what is committed."
)


def session_of(given: Any) -> Session | AsyncSession:
    """Return the session itself, or one on the connection, which ends no more than a savepoint."""
    whole = unwrapped(given)
    if isinstance(whole, Session | AsyncSession):
        return whole
    if isinstance(whole, AsyncConnection):
        return AsyncSession(whole, join_transaction_mode="create_savepoint")
    return Session(_connection_of(whole), join_transaction_mode="create_savepoint")


@contextmanager
def joined(given: Any) -> Iterator[OneConnection]:
    """Lend the test's transaction; then its session sees what was done there.

    Async ones only in a greenlet, where their objects can be read anew.
    """
    whole = unwrapped(given)
    whole = getattr(whole, "sync_session", getattr(whole, "sync_connection", whole))
    connection = _connection_of(whole)
    if connection.dialect.driver != "psycopg":
        raise InvalidConnectionError(
            f"This connection is of {connection.dialect.driver}, and workers use psycopg. "
            "Use postgresql+psycopg:// in your tests, or commit and call drain() without a session."
        )
    database = OneConnection(connection)
    if not isinstance(whole, Session):
        yield database
        return
    whole.flush()
    try:
        yield database
    finally:
        whole.expire_all()  # handlers have sessions of their own
        for found in list(whole) if database.is_async else ():
            with suppress(InvalidRequestError):  # its row is gone
                whole.refresh(found)


def _connection_of(whole: Any) -> Connection:
    """Return the connection of the test's transaction, which is begun at the latest here."""
    connection = _borrowed(whole) if is_raw(whole) else writing_connection_of(whole)
    if commits_itself(connection):
        raise InvalidConnectionError(_AUTOCOMMIT)
    if not connection.in_transaction():
        connection.begin()  # or a session's own commit would end it
    return connection


def _borrowed(raw: psycopg.Connection[Any]) -> Connection:
    """Return SQLAlchemy's Connection on one of psycopg, whose transaction stays its owner's."""
    url = "postgresql+psycopg://"
    return create_engine(url, creator=lambda: _Borrowed(raw), use_native_hstore=False).connect()


class _Borrowed:
    """A connection of psycopg that SQLAlchemy can use; to end anything is left to its owner."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw
        in_transaction = raw.info.transaction_status != TransactionStatus.IDLE
        self.autocommit = raw.autocommit and not in_transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def cursor(self, *_: Any, **__: Any) -> psycopg.Cursor[Any]:
        return psycopg.Cursor(self._raw, row_factory=tuple_row)  # its owner may have set another

    def commit(self) -> None:
        pass

    rollback = close = commit


class OneConnection(Database):
    """What would be a transaction of a worker's own is a savepoint here."""

    def __init__(self, connection: Connection) -> None:
        super().__init__("postgresql+psycopg://")
        self.connection = connection
        self.is_async = connection.dialect.is_async

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a savepoint; it is released at the end of the block."""
        with self.connection.begin_nested():
            yield self.connection

    single = begin

    @contextmanager
    def run(self, transaction: Transaction) -> Iterator[None]:
        """Let a run begin and end its transaction; what it has not committed is undone."""
        say, pgconn = self.connection.exec_driver_sql, driver_of(self.connection).pgconn
        heard = pgconn.notice_handler, pgconn.notify_handler
        self._restore = say(_RESTORE).scalar_one().encode()
        say(_AROUND)
        say(BEGIN)
        try:
            yield
        except BaseException as error:
            if transaction.ended:
                raise Fail(ENDED) from error
            raise
        finally:
            transaction.abandon()
            pgconn.notice_handler, pgconn.notify_handler = heard
            say(ROLLBACK)
            say(f"RELEASE {_AROUND}")

    def async_engine(self, connections: int) -> AsyncEngine:
        engine = super().async_engine(connections)
        event.remove(engine.sync_engine, "do_connect", loop_connection.connect)
        self._lend(engine.sync_engine, LoopSavepointConnection, LoopCursor)
        return engine

    def _make(self, settings: dict[str, str], size: int) -> Engine:
        engine = super()._make(settings, size)
        self._lend(engine, SavepointConnection, HandlerCursor)
        return engine

    def _lend(self, engine: Engine, kind: type[HandlerConnection], cursors: Any) -> None:
        def connect(*_: object) -> Any:
            made: Any = kind(driver_of(self.connection).pgconn)
            made.cursor_factory, made.prepare_threshold = cursors, None
            made.restore = self._restore
            return made

        event.listen(engine, "do_connect", connect)
        engine.update_execution_options(**{UNHEARD: True})


class _Inner(psycopg.Connection[Any]):
    """Begins and ends savepoints; all else of the session is the test's."""

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
        pgconn, self.pgconn = self.pgconn, NO_CONNECTION
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
        if NO_TASK in ending.settlements:
            return ready._replace(last=[SuccessStatement(b"", b"SELECT WHERE false", [], [])])
        return ready

    def _send_ours(self, name: bytes) -> None:
        if name == COMMIT or name in UNDOING:
            self.pgconn.send_query_params(BEGIN.encode() if name == COMMIT else self.restore, None)
        else:
            super()._send_ours(name)

    def _commit(self, permit: RunEnd) -> None:
        super()._commit(permit)
        permit.started.clear()  # no worker sees these tasks

    def check_statement(self, statement: Any) -> None:
        """Refuse also what a worker would only find out when the rows of the test are committed."""
        super().check_statement(statement)
        if isinstance(statement, str) and ends_transaction(_DOLLARS.sub("''", statement)):
            self.ended = True
            raise Fail(ENDED)


class SavepointConnection(_Outer, _Inner):
    """For plain handlers."""


class LoopSavepointConnection(_Outer, LoopConnection, _Inner):
    """For async handlers."""


class InlineLane(AsyncLane):
    """Calls coroutine functions; what blocks is done in place, on the connection of all."""

    def call_blocking(self, work: Callable[[], Any]) -> Any:
        return work()


NO_GUARD: Any = nullcontext()
"""In a worker's process guard's place: timers and descriptors of this process are the test's."""


def lane_of(spec: HandlerSpec, database: Any) -> Lane:
    """Return how to call a handler in the thread of the test."""
    return InlineLane(database, NO_GUARD, 1) if spec.is_async else SyncLane(database, NO_GUARD)
