"""The transaction of an async handler, on a connection of its event loop's engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_

from tasks_app.domain.group import Called
from tasks_app.domain.states import State
from tasks_app.domain.task import Settlement
from tasks_app.pool.succeed import asucceed
from tasks_app.runtime.handler_sessions import AsyncHandlerSession
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.reactions import is_unanswered
from tasks_app.runtime.transaction import NESTED, as_sqlalchemy_raises


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

    def send(self, settlement: Settlement) -> bool:  # noqa: ARG002  as a Transaction
        """Refuse: the loop has others to run while this one waits."""
        return False

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
                known = as_sqlalchemy_raises(error)
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
