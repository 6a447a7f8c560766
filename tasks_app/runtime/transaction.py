"""The transaction of one run: what its handler writes through, and what its outcome commits with.

``connection`` is a plain connection; a session is made only when it is asked for. Whichever was
asked for first, both stand for the same transaction.
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util import await_

from tasks_app.domain.states import State
from tasks_app.domain.task import Settlement
from tasks_app.pool.settle import settle_one
from tasks_app.runtime.borrowed import COMMITS_LATER, commit_permitted


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


class AsyncHandlerSession(AsyncSession):
    """The same for async handlers."""

    async def commit(self) -> None:
        """Refuse: effect and outcome are one commit."""
        raise RuntimeError(COMMITS_LATER)

    async def commit_with_outcome(self) -> None:
        """Commit, for the executor."""
        with commit_permitted(self.sync_session.connection()):
            await super().commit()


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


class Transaction(Access, Protocol):
    """Made when it is first touched; used by one run."""

    def settle(self, settlement: Settlement) -> State | None:
        """Write the outcome in it, uncommitted; None: the fence is lost."""

    def commit(self) -> None:
        """Commit effect and outcome."""

    def abandon(self) -> None:
        """Roll back and give the connection back; never raises."""


class PlainTransaction:
    """Of a plain handler."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._session: HandlerSession | None = None

    @property
    def session(self) -> HandlerSession:
        """A session that takes over the connection if there is one; once closed it stays closed."""
        if self._session is None:
            self._session = HandlerSession(
                self._engine if self._connection is None else self._connection,
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
            self._connection = self._engine.connect()
        return self._connection

    @property
    def active(self) -> bool:
        """Whether anything was done in it."""
        if self._session is not None and self._session.in_transaction():
            return True
        return self._connection is not None and self._connection.in_transaction()

    def settle(self, settlement: Settlement) -> State | None:
        """Flush what the handler left and settle on the same connection."""
        if self._session is not None:
            self._session.flush()
        return settle_one(self.connection, settlement)

    def commit(self) -> None:
        """Commit effect and outcome."""
        if self._session is not None:
            self._session.commit_with_outcome()
        elif self._connection is not None:
            with commit_permitted(self._connection):
                self._connection.commit()

    def abandon(self) -> None:
        """Close; an open transaction rolls back."""
        for end in (self._session, self._connection):
            if end is None:
                continue
            try:
                end.close()
            except BaseException:  # listeners of the user's may raise anything, broken drivers too
                with contextlib.suppress(BaseException):
                    end.invalidate()


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

    def settle(self, settlement: Settlement) -> State | None:
        """Flush what the handler left and settle on the same connection."""

        async def settled() -> State | None:
            await self.session.flush()
            return await (await self.session.connection()).run_sync(settle_one, settlement)

        return await_(settled())

    def commit(self) -> None:
        """Commit effect and outcome."""
        await_(self.session.commit_with_outcome())

    def abandon(self) -> None:
        """Close; an open transaction rolls back."""
        session = self._session
        if session is None:
            return

        async def closed() -> None:
            try:
                await session.close()
            except BaseException:  # as above
                with contextlib.suppress(BaseException):
                    await session.invalidate()

        with contextlib.suppress(BaseException):
            await_(closed())
