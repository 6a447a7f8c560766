"""Lanes: how a handler is called, sync or async, each with a session that the executor commits."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from tasks_app.domain.handler import HandlerSpec
from tasks_app.domain.states import State
from tasks_app.domain.task import Settlement
from tasks_app.pool.settle import settle_one
from tasks_app.runtime.aftermath import Aftermath
from tasks_app.runtime.context import AsyncHandlerSession, HandlerSession
from tasks_app.runtime.database import Database
from tasks_app.runtime.limits import time_limit

T = TypeVar("T")


class Lane(Protocol):
    """One way to call handlers and to end their transactions."""

    def open_session(self) -> Any:
        """Return a new, unopened session."""

    def call(self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None) -> Any:
        """Run the handler under its time limit and return what it returned."""

    def settle(self, session: Any, settlement: Settlement) -> State | None:
        """Write the outcome in the handler's transaction, uncommitted; None: the fence is lost."""

    def commit(self, session: Any) -> None:
        """Commit effect and outcome."""

    def abandon(self, session: Any) -> None:
        """Roll back and give the connection back; never raises."""


class SyncLane:
    """Calls plain functions."""

    def __init__(self, database: Database, aftermath: Aftermath) -> None:
        self._database = database
        self._aftermath = aftermath

    def open_session(self) -> HandlerSession:
        """Return a new session on the handlers' engine; once closed it cannot be used again."""
        return HandlerSession(self._database.handler_engine, close_resets_only=False)

    def call(self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None) -> Any:
        """Run the function; the limit is raised in it where signals allow.

        In a copy of the context, so that its context variables end with it.
        """
        with self._aftermath:
            if limit is None:
                return contextvars.copy_context().run(spec.function, *arguments)
            with time_limit(limit, spec.timeout_error):
                return contextvars.copy_context().run(spec.function, *arguments)

    def settle(self, session: HandlerSession, settlement: Settlement) -> State | None:
        """Flush what the handler left and settle on the same connection."""
        session.flush()
        return settle_one(session.connection(), settlement)

    def commit(self, session: HandlerSession) -> None:
        """Commit effect and outcome."""
        session.commit_with_outcome()

    def abandon(self, session: HandlerSession) -> None:
        """Close; an open transaction rolls back."""
        try:
            session.close()
        except BaseException:  # listeners of the user's may raise anything, broken drivers too
            with contextlib.suppress(BaseException):
                session.invalidate()


class AsyncLane:
    """Calls coroutine functions, one at a time, in an event loop of the calling thread."""

    def __init__(self, database: Database, aftermath: Aftermath) -> None:
        self._database = database
        self._aftermath = aftermath
        self._local = threading.local()

    def open_session(self) -> AsyncHandlerSession:
        """Return a new session on this thread's async engine; once closed it stays closed."""
        return AsyncHandlerSession(self._engine(), expire_on_commit=False, close_resets_only=False)

    def call(self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None) -> Any:
        """Run the coroutine; the limit cancels it at its next await."""

        async def limited() -> Any:
            scope = asyncio.timeout(limit)
            try:
                async with scope:
                    with self._aftermath:
                        return await spec.function(*arguments)
            except TimeoutError:
                if limit is not None and scope.expired():
                    raise spec.timeout_error(limit) from None
                raise

        return self._run(limited())

    def settle(self, session: AsyncHandlerSession, settlement: Settlement) -> State | None:
        """Flush what the handler left and settle on the same connection."""

        async def settled() -> State | None:
            await session.flush()
            return await (await session.connection()).run_sync(settle_one, settlement)

        return self._run(settled())

    def commit(self, session: AsyncHandlerSession) -> None:
        """Commit effect and outcome."""
        self._run(session.commit_with_outcome())

    def abandon(self, session: AsyncHandlerSession) -> None:
        """Close; an open transaction rolls back."""

        async def closed() -> None:
            try:
                await session.close()
            except BaseException:  # as above
                with contextlib.suppress(BaseException):
                    await session.invalidate()

        with contextlib.suppress(BaseException):
            self._run(closed())

    def close(self) -> None:
        """End this thread's loop and its connections."""
        runner: asyncio.Runner | None = getattr(self._local, "runner", None)
        engine: AsyncEngine | None = getattr(self._local, "engine", None)
        if runner is not None:
            self._local.runner = self._local.engine = None
            if engine is not None:
                runner.run(engine.dispose())
            runner.close()

    def _forget_the_loop(self) -> None:
        with contextlib.suppress(BaseException):
            self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end. Not by ``Runner.run``: to handle SIGINT it prints the main task.

        With it prints the task's exception, whose text may raise; then SIGINT's handler stays, and
        no async handler runs in this process again (Python 3.11, asyncio/runners.py).
        """
        task = self._runner().get_loop().create_task(work)
        try:
            return self._runner().get_loop().run_until_complete(task)
        except BaseException:
            if not task.done():  # the handler stopped the loop: nobody shall resume it later
                self._forget_the_loop()
            elif not task.cancelled():
                task.exception()  # else asyncio reports it, text and all, as never retrieved
            raise

    def _runner(self) -> asyncio.Runner:
        if getattr(self._local, "runner", None) is None:
            self._local.runner = asyncio.Runner()
        return self._local.runner  # type: ignore[no-any-return]

    def _engine(self) -> AsyncEngine:
        if getattr(self._local, "engine", None) is None:
            self._local.engine = self._database.async_engine()
        return self._local.engine  # type: ignore[no-any-return]
