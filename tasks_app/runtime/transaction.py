"""The transaction of one run: what its handler writes through, and what its outcome commits with.

``connection`` is a plain connection; a session is made only when it is asked for. Whichever was
asked for first, both stand for the same transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util import await_

from tasks_app.domain.group import Called
from tasks_app.domain.states import State
from tasks_app.domain.task import Settlement
from tasks_app.pool.succeed import asucceed, succeed
from tasks_app.runtime.borrowed import COMMITS_LATER, commit_permitted
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.kept import KeptConnections
from tasks_app.runtime.reactions import is_unanswered


class HandlerSession(Session):
    """A session whose commit belongs to the executor."""

    def commit(self) -> None:
        """Refuse: effect and outcome are one commit."""
        raise RuntimeError(COMMITS_LATER)

    def commit_with_outcome(self) -> None:
        """Commit, for the executor."""
        with commit_permitted(self.connection()):
            super().commit()

    def hear_of_commit(self) -> None:
        """End, where somebody else committed the connection: listeners are told."""
        super().commit()

    def close(self) -> None:
        """Leave it open: what is written in ``with ctx.session`` commits with the outcome, too."""

    def end(self) -> None:
        """Close, for the executor."""
        super().close()


class AsyncHandlerSession(AsyncSession):
    """The same for async handlers."""

    async def commit(self) -> None:
        """Refuse: effect and outcome are one commit."""
        raise RuntimeError(COMMITS_LATER)

    async def commit_with_outcome(self) -> None:
        """Commit, for the executor."""
        with commit_permitted(self.sync_session.connection()):
            await super().commit()

    async def close(self) -> None:
        """Leave it open, as above."""

    async def end(self) -> None:
        """Close, for the executor."""
        await super().close()


CLOSED = (
    "The handler closed ctx.connection, and with it went what it wrote. "
    "Leave it open: it commits with the outcome."
)


NESTED = (
    "ctx.commit() was called in a savepoint (begin_nested), which would end with it. "
    "Call it when the savepoint is released."
)


class Access(Protocol):
    """What a handler sees of it."""

    @property
    def session(self) -> Any:
        """The ORM's way."""

    @property
    def connection(self) -> Connection:
        """The way without the ORM."""

    @property
    def active(self) -> bool:
        """Whether anything was done in it, and it is to be ended with the run."""

    def keep(self, save: Callable[[Connection], None]) -> Any:
        """Commit what was done so far, ``save`` last; what follows is a transaction of its own.

        In async handlers it is awaited. What ``save`` raises prevents the commit.
        """


class Transaction(Access, Protocol):
    """Made when it is first touched; used by one run."""

    def conclude(self, settlement: Settlement) -> State | None:
        """Commit effect and outcome; None: the fence is lost, nothing was committed."""

    def abandon(self) -> None:
        """Roll back and give the connection back; never raises."""


class PlainTransaction:
    """Of a plain handler."""

    def __init__(self, kept: KeptConnections, *, more: bool = False) -> None:
        """``more``: another run of this thread's follows at once."""
        self._kept = kept
        self._more = more
        self._connection: Connection | None = None
        self._session: HandlerSession | None = None

    @property
    def session(self) -> HandlerSession:
        """A session that takes over the connection if there is one; once closed it stays closed."""
        if self._session is None:
            self._session = HandlerSession(
                self._kept.release() if self._connection is None else self._connection,
                join_transaction_mode="control_fully",
                close_resets_only=False,
            )
        return self._session

    @property
    def connection(self) -> Connection:
        """The session's connection if there is a session, else one without."""
        if self._session is not None:
            return self._session.connection()
        if self._connection is None:
            self._connection = self._kept.take()
        return self._connection

    @property
    def active(self) -> bool:
        """Whether anything was done in it."""
        if self._session is not None and self._session.in_transaction():
            return True
        connection = self._connection
        return connection is not None and (connection.closed or connection.in_transaction())

    def keep(self, save: Callable[[Connection], None]) -> None:
        """Commit what was done so far, ``save`` last.

        Raises:
            RuntimeError: a savepoint is open, or the connection was closed.
        """
        session = self._session
        if session is not None:
            session.flush()
        connection = self.connection
        if connection.closed:
            raise RuntimeError(CLOSED)
        if connection.in_nested_transaction():
            raise RuntimeError(NESTED)
        save(connection)
        if session is not None:
            session.commit_with_outcome()
        else:
            with commit_permitted(connection):
                connection.commit()

    def conclude(self, settlement: Settlement) -> State | None:
        """Flush what the handler left, settle and commit on the same connection.

        A session commits by itself, so that its listeners hear of it.
        """
        session = self._session
        if session is not None:
            session.flush()
        connection = self.connection
        if connection.closed:
            raise RuntimeError(CLOSED)
        raw: Any = connection.connection.driver_connection
        called: list[Called] = []
        try:
            if not succeed(raw, settlement, called):
                return None
        except psycopg.Error as error:
            known = _known(error)
            if is_unanswered(known):
                connection.invalidate(known)
            raise known from error
        if session is not None:
            session.commit_with_outcome()
        else:
            self._kept.commit(connection, more=self._more)
        HINTS.called(called)
        return State.SUCCEEDED

    def abandon(self) -> None:
        """Close; an open transaction rolls back."""
        session, connection = self._session, self._connection
        self._session = self._connection = None
        if session is not None:
            give_back(session.end, session.invalidate)
        if connection is not None:
            give_back(lambda: self._kept.put_back(connection), connection.invalidate)


class AsyncTransaction:
    """Of an async handler; the run waits for the database in its greenlet."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._session: AsyncHandlerSession | None = None

    @property
    def session(self) -> AsyncHandlerSession:
        """Once closed it stays closed."""
        if self._session is None:
            self._session = AsyncHandlerSession(
                self._engine, expire_on_commit=False, close_resets_only=False
            )
        return self._session

    @property
    def connection(self) -> Connection:
        """Refuse: it has to be awaited.

        Raises:
            TypeError: always.
        """
        raise TypeError("In async handlers use: await ctx.session.connection()")

    @property
    def active(self) -> bool:
        """Whether anything was done in it."""
        return self._session is not None and self._session.in_transaction()

    async def keep(self, save: Callable[[Connection], None]) -> None:
        """Commit what was done so far, ``save`` last.

        Raises:
            RuntimeError: a savepoint is open.
        """
        session = self.session
        await session.flush()
        connection = await session.connection()
        if connection.in_nested_transaction():
            raise RuntimeError(NESTED)
        await connection.run_sync(save)
        await session.commit_with_outcome()

    def conclude(self, settlement: Settlement) -> State | None:
        """Flush what the handler left, settle and commit on the same connection."""

        async def concluded() -> State | None:
            await self.session.flush()
            connection = await self.session.connection()
            raw: Any = (await connection.get_raw_connection()).driver_connection
            called: list[Called] = []
            try:
                if not await asucceed(raw, settlement, called):
                    return None
            except psycopg.Error as error:
                known = _known(error)
                if is_unanswered(known):
                    await connection.invalidate(known)
                raise known from error
            await self.session.commit_with_outcome()
            HINTS.called(called)
            return State.SUCCEEDED

        return await_(concluded())

    def abandon(self) -> None:
        """Close; an open transaction rolls back."""
        session = self._session
        if session is None:
            return

        async def closed() -> None:
            try:
                await session.end()
            except BaseException:  # as above
                with contextlib.suppress(BaseException):
                    await session.invalidate()

        with contextlib.suppress(BaseException):
            await_(closed())


def _known(error: psycopg.Error) -> DBAPIError:
    """Return the error as SQLAlchemy would have raised it, without the outcome in its text."""
    known = DBAPIError.instance("settle", None, error, psycopg.Error, hide_parameters=True)
    assert isinstance(known, DBAPIError)  # noqa: S101  as psycopg's own are translated
    return known


def give_back(close: Callable[[], object], invalidate: Callable[[], object]) -> None:
    """Close what a handler had; never raises."""
    try:
        close()
    except BaseException:  # listeners of the user's may raise anything, broken drivers too
        with contextlib.suppress(BaseException):
            invalidate()
