"""What parts of a worker need, on the one connection of a test's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.transaction import Transaction
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.lanes import AsyncLane, Lane, SyncLane
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.handler_db import loop_connection
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.handler_cursors import HandlerCursor
from tasks_app.runtime.handler_db.handler_statements import ENDED
from tasks_app.runtime.handler_db.lending import driver_of
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.runtime.hints.hints import UNHEARD
from tasks_app.testing.savepoints import (
    BEGIN,
    ROLLBACK,
    LoopSavepointConnection,
    SavepointConnection,
)

T = TypeVar("T")
_AROUND = "SAVEPOINT tasks_app_starts"
_RESTORE = """SELECT format(
    'SELECT set_config(''role'', %%1$L, false), set_config(''search_path'', %%2$L, false)
    WHERE (current_setting(''role''), current_setting(''search_path'')) <> (%%1$L, %%2$L)',
    current_setting('role'), current_setting('search_path'))"""
"""Makes the statement that takes back what decides the tables that a statement meets."""


class OneConnection(Database):
    """What would be a transaction of a worker's own is a savepoint here."""

    def __init__(self, connection: Connection) -> None:
        super().__init__("postgresql+psycopg://")
        self._only = connection

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a savepoint; it is released at the end of the block."""
        with self._only.begin_nested():
            yield self._only

    single = begin

    @contextmanager
    def run(self, transaction: Transaction) -> Iterator[None]:
        """Let a run begin and end its transaction; what it has not committed is undone."""
        say, pgconn = self._only.exec_driver_sql, driver_of(self._only).pgconn
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
        """Return one whose connections are the test's."""
        engine = super().async_engine(connections)
        event.remove(engine.sync_engine, "do_connect", loop_connection.connect)
        self._lend(engine.sync_engine, LoopSavepointConnection, loop_connection.LoopCursor)
        return engine

    def _make(self, settings: dict[str, str], size: int) -> Engine:
        engine = super()._make(settings, size)
        self._lend(engine, SavepointConnection, HandlerCursor)
        return engine

    def _lend(self, engine: Engine, kind: type[HandlerConnection], cursors: Any) -> None:
        def connect(*_: object) -> Any:
            made: Any = kind(driver_of(self._only).pgconn)
            made.cursor_factory, made.prepare_threshold = cursors, None
            made.restore = self._restore
            return made

        event.listen(engine, "do_connect", connect)
        engine.update_execution_options(**{UNHEARD: True})


class NoGuard(ProcessGuard):
    """The process is the test's: its timers and descriptors are left alone."""

    def __init__(self) -> None:
        self.unfit = False

    def __exit__(self, *_: object) -> None:
        """Look at nothing."""


class InlineLane(AsyncLane):
    """Calls coroutine functions; what blocks is done in place, on the connection of all."""

    def aside(self, work: Callable[[], T]) -> T:
        """Do it here."""
        return work()


def lane_of(spec: HandlerSpec, database: Any) -> Lane:
    """Return how to call a handler in the thread of the test."""
    return InlineLane(database, NoGuard(), 1) if spec.is_async else SyncLane(database, NoGuard())


class InlineInvocation(Invocation):
    """Calls handlers in the thread of the test."""

    def __init__(
        self, settings: Settings, database: Database, middleware: Sequence[Middleware]
    ) -> None:
        guard = NoGuard()
        super().__init__(settings, database, guard, middleware)
        self._async = InlineLane(database, guard, 1)
