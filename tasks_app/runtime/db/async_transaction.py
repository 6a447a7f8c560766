"""The transaction of an async handler, on a connection of its event loop's engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only as await_

from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.db.errors import is_unanswered
from tasks_app.runtime.db.transaction import NESTED, as_sqlalchemy_raises, carry_out, of_commit
from tasks_app.runtime.handler_db.end_of_run import Permit
from tasks_app.runtime.handler_db.end_pipeline import OutcomeRefusedError
from tasks_app.runtime.handler_db.handler_connections import AsyncHandlerConnection
from tasks_app.runtime.handler_db.handler_sessions import DRIVERS, FENCE, AsyncHandlerSession
from tasks_app.runtime.handler_db.handler_statements import ENDED
from tasks_app.runtime.handler_db.late_writes import Write, write_of
from tasks_app.runtime.handler_db.lending import driver_of
from tasks_app.runtime.hints.hints import HINTS


class AsyncTransaction:
    """For an async handler; the run waits for the database in its greenlet."""

    def __init__(self, engine: AsyncEngine, fence: Fence) -> None:
        self._engine = engine
        self._fence = fence
        self._session: AsyncHandlerSession | None = None
        self._writes: list[Write] = []

    @property
    def session(self) -> AsyncHandlerSession:
        """Once closed it stays closed."""
        if self._session is None:
            self._session = AsyncHandlerSession(
                self._engine, expire_on_commit=False, close_resets_only=False
            )
            self._session.sync_session.info[FENCE] = self._fence
        return self._session

    @property
    def connection(self) -> Connection:
        """Refuse: it has to be awaited.

        Raises:
            TypeError: always.
        """
        raise TypeError("In async handlers use: await ctx.session.connection()")

    def check_awaited(self) -> None:
        """Pass if the handler awaited all that its session gave it.

        Raises:
            RuntimeError: it did not.
        """
        if self._session is not None and (left := self._session.made.end()):
            raise RuntimeError(
                f"A coroutine was never awaited, so it did nothing: {left}. Write await before it."
            )

    def write(self, query: str, parameters: Any) -> None:
        write = write_of(query, parameters)
        self._writes.append(write)

    @property
    def late_writes(self) -> tuple[Write, ...]:
        return tuple(self._writes) if self._session is None else ()

    @property
    def active(self) -> bool:
        return (
            bool(self._writes)
            or self.ended
            or (self._session is not None and self._session.in_transaction())
        )

    @property
    def ended(self) -> bool:
        return any(driver.has_ended() for driver in self._drivers)

    @property
    def untried(self) -> bool:
        return bool(self._drivers) and not any(driver.answered for driver in self._drivers)

    @property
    def _drivers(self) -> Collection[AsyncHandlerConnection]:
        return () if self._session is None else self._session.sync_session.info.get(DRIVERS, ())

    async def keep(self, save: Callable[[Connection], None]) -> None:
        """Commit what was done so far, ``save`` last.

        Raises:
            RuntimeError: a savepoint is open.
        """
        await self.session.flush()
        connection = await self.session.connection()
        if connection.in_nested_transaction():
            raise RuntimeError(NESTED)
        await connection.run_sync(carry_out, self._writes)
        await connection.run_sync(save)
        await self._commit(Permit())

    def conclude(self, settlement: Settlement) -> State | None:
        """Flush, settle and commit on the same connection."""

        async def concluded() -> State | None:
            if self.ended:
                raise Fail(ENDED)
            permit = Permit(settlement, writes=self._writes)
            await self.session.flush()
            try:
                await self._commit(permit)
            except OutcomeRefusedError:
                return None
            HINTS.called(permit.called)
            return State.SUCCEEDED

        return await_(concluded())

    async def _commit(self, permit: Permit) -> None:
        connection = await self.session.connection()
        driver = driver_of(connection.sync_connection)
        driver.check()
        if permit.settlement is not None:
            driver.seal()
        driver.permit = permit
        try:
            await self.session.commit_with_outcome()
            if driver.permit is not None:
                await driver.commit()  # SQLAlchemy took it for ended
        except psycopg.Error as error:
            known = as_sqlalchemy_raises(error)
            if is_unanswered(known):
                await connection.invalidate(known)
            raise of_commit(known) from error
        except SQLAlchemyError as error:
            if driver.permit is None:
                of_commit(error)
            raise

    def abandon(self) -> None:
        self._writes.clear()
        session = self._session
        if session is None:
            return

        async def closed() -> None:
            session.made.end()
            for driver in self._drivers:
                await driver.break_off()
            try:
                await session.end()
            except BaseException:  # see give_back
                with contextlib.suppress(BaseException):
                    await session.invalidate()

        with contextlib.suppress(BaseException):
            await_(closed())
