"""The transaction of a run, on a connection of its own.

A run is plain code, around handlers of both kinds. Around an async one it is a greenlet, and what
waits for the database here waits in it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from types import FrameType
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.db.transaction import (
    LOST,
    NESTED,
    as_sqlalchemy_raises,
    carry_out,
    give_back,
    of_commit,
    uncommitted,
)
from tasks_app.runtime.handler_db.ends import OutcomeRefusedError, RunEnd
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.handler_driver import CLOSED, OVER, UnusableConnectionError
from tasks_app.runtime.handler_db.handler_sessions import AsyncHandlerSession, HandlerSession
from tasks_app.runtime.handler_db.handler_statements import ENDED
from tasks_app.runtime.handler_db.statements import Write
from tasks_app.runtime.handler_db.statements import write_of
from tasks_app.runtime.handler_db.lending import ADOPT, driver_of
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.hints.new_tasks import of_called

log = quiet_logger(__name__)


class RunTransaction:
    """For a plain handler."""

    is_async = False

    def __init__(self, engine: Engine, fence: Fence) -> None:
        self._engine = engine
        self._fence = fence
        self._taking = Lock()
        self._connection: Connection | None = None
        self._session: HandlerSession | None = None
        self._had: set[HandlerConnection] = set()
        """The connections that it was lent."""
        self._writes: list[Write] = []
        self._over = False

    @property
    def session(self) -> Any:
        """A session on the same connection; once closed it stays closed."""
        if self._session is None:
            self._session = HandlerSession(self._engine, self._taken, self._adopt)
        return self._session

    @property
    def connection(self) -> Connection:
        """The run's connection, as its session has it if there is one."""
        return self._working()

    def _working(self) -> Connection:
        return self._taken() if self._session is None else self._session.connection()

    def _taken(self) -> Connection:
        with self._taking:  # threads of the handler may ask at once
            if self._connection is None:
                self._adopt(self._engine.connect())
            assert self._connection is not None  # noqa: S101  see above
            return self._connection

    def _adopt(self, connection: Connection) -> None:
        if self._over:  # what the handler left running has waited for it
            give_back(connection.close, connection.invalidate)
            raise psycopg.InterfaceError(OVER)
        driver = driver_of(connection)
        driver.fence = self._fence
        self._had.add(driver)
        vars(connection)[ADOPT] = self._adopt
        self._connection = connection

    def write(self, query: str, parameters: Any) -> None:
        write = write_of(query, parameters)
        self._writes.append(write)

    @property
    def late_writes(self) -> tuple[Write, ...]:
        untouched = self._connection is None and self._session is None
        return tuple(self._writes) if untouched else ()

    @property
    def active(self) -> bool:
        if self._writes:
            return True
        if self._session is not None and self._session.in_transaction():
            return True
        connection = self._connection
        if connection is None:
            return False
        if connection.closed or connection.invalidated:
            return True
        driver = driver_of(connection)
        return driver is None or driver.is_at_work

    @property
    def ended(self) -> bool:
        return any(driver.has_ended() for driver in self._drivers)

    @property
    def untried(self) -> bool:
        return bool(self._had) and not any(driver.answered for driver in self._drivers)

    @property
    def _drivers(self) -> set[HandlerConnection]:
        """Those that it was lent; if one was lost, also the one in its place."""
        connection = self._connection
        if connection is None or connection.closed or connection.invalidated:
            return self._had
        return self._had | ({driver_of(connection)} - {None})

    def keep(self, save: Callable[[Connection], None]) -> Any:
        """Commit what was done so far, ``save`` last.

        Raises:
            RuntimeError: a savepoint is open, or the connection was closed.
        """
        connection = self._flushed()
        if connection.in_nested_transaction():
            raise RuntimeError(NESTED)
        carry_out(connection, self._writes)
        save(connection)
        self._commit(connection, RunEnd())

    def conclude(self, settlement: Settlement) -> State | None:
        """Flush what the handler left, settle and commit on the same connection.

        If there is a session, it is the one that commits, so that its listeners are called.
        """
        if self.ended:
            raise Fail(ENDED)
        connection = self._flushed()
        permit = RunEnd(settlement, self._writes)
        try:
            self._commit(connection, permit)
        except OutcomeRefusedError:
            return None
        except BaseException as error:  # a listener of the user's session may raise anything
            if not permit.stands:
                raise
            said = "task %s: a listener failed behind the COMMIT, which stands: %s"
            log.error(said, self._fence.task_id, type(error).__name__)  # noqa: TRY400
        HINTS.offer(of_called(permit.called))
        return State.SUCCEEDED

    def _flushed(self) -> Connection:
        if self._connection is not None and self._connection.invalidated:
            if any(driver.is_closed_here for driver in self._had):
                raise UnusableConnectionError(CLOSED)
            raise as_sqlalchemy_raises(psycopg.OperationalError(LOST))  # the handler caught it
        for driver in self._drivers:
            driver.check_whole()
        if self._session is not None:
            self._session.flush()
        connection = self._working()
        if connection.closed:
            raise UnusableConnectionError(CLOSED)
        return connection

    def _commit(self, connection: Connection, permit: RunEnd) -> None:
        driver = driver_of(connection)  # an async session gives it back with its commit
        if driver is None:  # it was detached
            raise UnusableConnectionError(CLOSED)
        driver.check()
        if permit.settlement is not None:
            driver.seal()
        driver.permit = permit
        try:
            if self._session is not None:
                self._session.commit_with_outcome()
            elif permit.settlement is None:
                connection.commit()
            if driver.permit is not None:
                driver.commit()  # SQLAlchemy took it for ended, or need not know: it closes next
        except psycopg.Error as error:
            raise uncommitted(connection, error) from error
        except SQLAlchemyError as error:
            if driver.permit is None:
                of_commit(error)
            raise
        finally:
            driver.permit = None  # a listener may have stopped it before it was used

    def abandon(self) -> None:
        self._over = True
        self._writes.clear()
        for driver in self._drivers:
            give_back(driver.break_off, driver.close)
        session, connection = self._session, self._connection
        self._session = self._connection = None
        if session is not None:
            give_back(session.end, session.invalidate)
        if connection is not None:
            give_back(connection.close, connection.invalidate)


class AsyncTransaction(RunTransaction):
    """For an async handler: what it does with it has to be awaited."""

    is_async = True

    def __init__(self, engine: AsyncEngine, fence: Fence) -> None:
        super().__init__(engine.sync_engine, fence)
        self._async_engine = engine
        self._outer: AsyncHandlerSession | None = None

    @property
    def session(self) -> AsyncHandlerSession:
        if self._outer is None:
            self._outer = AsyncHandlerSession(self._async_engine, super().session)
        return self._outer

    @property
    def connection(self) -> Connection:
        """Refuse: it has to be awaited."""
        raise TypeError("In async handlers use: await ctx.session.connection()")

    def _taken(self) -> Connection:
        taken: Connection = super().session.connection()
        return taken

    @property
    def active(self) -> bool:
        """As of a plain one, but its session gives its connection back with each commit."""
        inner = self._session
        return bool(self._writes) or self.ended or (inner is not None and inner.in_transaction())

    async def keep(self, save: Callable[[Connection], None]) -> None:
        """Commit what was done so far, ``save`` last."""
        await greenlet_spawn(super().keep, save)

    def note_made(self, made: Any, caller: FrameType) -> None:
        self.session.note_made(made, caller)

    def check_awaited(self) -> None:
        """Pass if the handler awaited all that its session gave it."""
        if self._outer is not None and (left := self._outer.made.end()):
            raise RuntimeError(
                f"A coroutine was never awaited, so it did nothing: {left}. Write await before it."
            )

    def abandon(self) -> None:
        if self._outer is not None:
            self._outer.made.end()
        super().abandon()
