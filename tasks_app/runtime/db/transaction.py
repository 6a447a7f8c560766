"""The transaction of one run: its handler writes in it, and its outcome commits with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import Lock
from types import FrameType
from typing import Any, Protocol, TypeVar

import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.db.errors import is_unanswered
from tasks_app.runtime.handler_db.ends import OutcomeRefusedError, RunEnd
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.handler_driver import CLOSED, OVER, UnusableConnectionError
from tasks_app.runtime.handler_db.handler_sessions import AsyncHandlerSession, HandlerSession
from tasks_app.runtime.handler_db.lending import ADOPT, driver_of
from tasks_app.runtime.handler_db.statements import ENDED, Write, query_of, write_of
from tasks_app.runtime.hints import HINTS, hints_of_started

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
        self._had: set[HandlerConnection] = set()  # the connections that it was lent
        self._writes: list[Write] = []
        self._over = False

    @property
    def session(self) -> Any:
        if self._session is None:
            self._session = HandlerSession(self._engine, self._taken, self._adopt)
        return self._session

    @property
    def connection(self) -> Connection:
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
        if self._over:  # a thread that the handler left running has waited for it
            give_back(connection.close, connection.invalidate)
            raise psycopg.InterfaceError(OVER)
        driver = driver_of(connection)
        driver.fence = self._fence
        self._had.add(driver)
        vars(connection)[ADOPT] = self._adopt
        self._connection = connection

    def read(self, find: Callable[[Connection], Any]) -> Any:
        return find(self.connection)

    def write(self, query: str, parameters: Any) -> None:
        self._writes.append(write_of(query, parameters))

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
        """Those that it was lent; if one was lost, also the one that replaced it."""
        connection = self._connection
        if connection is None or connection.closed or connection.invalidated:
            return self._had
        return self._had | ({driver_of(connection)} - {None})

    def keep(self, save: Callable[[Connection], None]) -> Any:
        """Raise RuntimeError if a savepoint is open, or the connection was closed."""
        connection = self._flushed()
        if connection.in_nested_transaction():
            raise RuntimeError(NESTED)
        carry_out(connection, self._writes)
        save(connection)
        self._commit(connection, RunEnd())

    def conclude(self, *settlements: Settlement) -> State | None:
        """Flush, settle and commit on the same connection.

        If there is a session, that commits, so that its listeners are called.
        """
        if self.ended:
            raise Fail(ENDED)
        connection = self._flushed()
        permit = RunEnd(settlements, self._writes)
        try:
            self._commit(connection, permit)
        except OutcomeRefusedError:
            return None
        except BaseException as error:  # a listener of the user's session may raise anything
            if not permit.stands:
                raise
            message = "task %s: a listener failed after the COMMIT, which stands: %s"
            log.error(message, self._fence.task_id, type(error).__name__)  # noqa: TRY400
        HINTS.offer(hints_of_started(permit.started))
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
        if permit.settlements:
            driver.seal()
        driver.permit = permit
        try:
            if self._session is not None:
                self._session.commit_with_outcome()
            elif not permit.settlements:
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
        raise TypeError("In async handlers use: await ctx.session.connection()")

    def _taken(self) -> Connection:
        taken: Connection = super().session.connection()
        return taken

    async def read(self, find: Callable[[Connection], Any]) -> Any:
        connection = await self.session.connection()
        return await connection.run_sync(find)

    @property
    def active(self) -> bool:
        """As above, but its session gives its connection back with each commit."""
        inner = self._session
        return bool(self._writes) or self.ended or (inner is not None and inner.in_transaction())

    async def keep(self, save: Callable[[Connection], None]) -> None:
        await greenlet_spawn(super().keep, save)

    def note_made(self, made: Any, caller: FrameType) -> None:
        self.session.note_made(made, caller)

    def check_awaited(self) -> None:
        """Raise RuntimeError if the handler did not await a coroutine of its session."""
        if self._outer is not None and (left := self._outer.made.end()):
            raise RuntimeError(
                f"A coroutine was never awaited, so it did nothing: {left}. Write await before it."
            )

    def abandon(self) -> None:
        if self._outer is not None:
            self._outer.made.end()
        super().abandon()


E = TypeVar("E", bound=BaseException)
_OF_COMMIT = "_tasks_app_sent_a_commit"
LOST = "The connection was lost before the COMMIT."
NESTED = (
    "ctx.commit() was called in a savepoint (begin_nested), which would end with it. "
    "Call it when the savepoint is released."
)


class Access(Protocol):
    """What a handler sees of its transaction."""

    is_async: bool  # whether what it does has to be awaited

    @property
    def session(self) -> Any:
        """Of SQLAlchemy's ORM."""

    @property
    def connection(self) -> Connection:
        """Of SQLAlchemy, without the ORM."""

    @property
    def active(self) -> bool:
        """Whether anything was done in it that ends with the run."""

    def read(self, find: Callable[[Connection], Any]) -> Any:
        """Return what ``find`` reads of our tables. Async handlers await it."""

    def write(self, query: str, parameters: Any) -> None:
        """Send a statement with the next commit, and wait for no answer before that.

        Raises:
            TypeError: it is no text.
            ValueError: it has a NUL.
            RuntimeError: it would end the transaction.
        """

    def keep(self, save: Callable[[Connection], None]) -> Any:
        """Commit what was done so far, ``save`` last; what follows is another transaction.

        Async handlers await it. If ``save`` raises, nothing is committed.
        """


class Transaction(Access, Protocol):
    """Begun at its first use, by one run."""

    @property
    def late_writes(self) -> tuple[Write, ...]:
        """All that the run did, if it only called ``write``; else nothing."""

    @property
    def ended(self) -> bool:
        """Whether the handler ended it, so that what it wrote may be committed."""

    @property
    def untried(self) -> bool:
        """Whether its connection answered nothing, so that nothing was done."""

    def conclude(self, *settlements: Settlement) -> State | None:
        """Commit effect and outcomes; None: a fence is lost, nothing was committed."""

    def abandon(self) -> None:
        """Roll back and give the connection back; never raises."""


def as_sqlalchemy_raises(error: psycopg.Error) -> DBAPIError:
    """Return the error as SQLAlchemy would have raised it, without the outcome in its text."""
    known = DBAPIError.instance(
        query_of(error) or "settle", None, error, psycopg.Error, hide_parameters=True
    )
    assert isinstance(known, DBAPIError)  # noqa: S101  as psycopg's own are translated
    return known


def of_commit(error: E) -> E:
    """Mark an error of a COMMIT, which may have been sent."""
    setattr(error, _OF_COMMIT, True)
    return error


def uncommitted(connection: Connection, error: psycopg.Error) -> DBAPIError:
    """Return the error of a COMMIT as SQLAlchemy would have raised it.

    A connection on which it was not answered is not used again.
    """
    known = as_sqlalchemy_raises(error)
    if is_unanswered(known):
        connection.invalidate(known)
    return of_commit(known)


def is_of_commit(error: BaseException) -> bool:
    """Whether the error came from a COMMIT that may have been sent."""
    return getattr(error, _OF_COMMIT, False)


def give_back(close: Callable[[], object], invalidate: Callable[[], object]) -> None:
    """Close a connection or session of a handler; never raises."""
    try:
        close()
    except BaseException:  # a user's listeners may raise anything, broken drivers too
        with contextlib.suppress(BaseException):
            invalidate()


def carry_out(connection: Connection, writes: list[Write]) -> None:
    """Send one after the other, wait for each answer, and take out those that were sent.

    So a handler that swallows an error does not lose the ones after it.
    """
    driver: Any = connection.connection.driver_connection
    while writes:
        try:
            writes[0].send(driver.cursor())
        except psycopg.Error as error:
            raise as_sqlalchemy_raises(error) from error
        del writes[0]
