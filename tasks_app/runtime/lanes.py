"""Lanes: how a handler is called, sync or async, each with a session that the executor commits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from tasks_app.domain.handler import HandlerSpec
from tasks_app.domain.states import State
from tasks_app.domain.task import Settlement
from tasks_app.pool.settle import settle_one
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

    def __init__(self, database: Database) -> None:
        self._database = database

    def open_session(self) -> HandlerSession:
        """Return a new session on the handlers' engine."""
        return HandlerSession(self._database.handler_engine)

    def call(self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None) -> Any:
        """Run the function; the limit is raised in it where signals allow."""
        with time_limit(limit, spec.timeout_error):
            return spec.function(*arguments)

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

    def __init__(self, database: Database) -> None:
        self._database = database
        self._local = threading.local()

    def open_session(self) -> AsyncHandlerSession:
        """Return a new session on this thread's async engine."""
        return AsyncHandlerSession(self._engine(), expire_on_commit=False)

    def call(self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None) -> Any:
        """Run the coroutine; the limit cancels it at its next await."""

        async def limited() -> Any:
            scope = asyncio.timeout(limit)
            try:
                async with scope:
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
            if engine is not None:
                runner.run(engine.dispose())
            runner.close()
            self._local.runner = self._local.engine = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end. Not by ``Runner.run``: to handle SIGINT it prints the main task.

        With it prints the task's exception, whose text may raise; then SIGINT's handler stays, and
        no async handler runs in this process again (Python 3.11, asyncio/runners.py).
        """
        return self._runner().get_loop().run_until_complete(work)

    def _runner(self) -> asyncio.Runner:
        if getattr(self._local, "runner", None) is None:
            self._local.runner = asyncio.Runner()
        return self._local.runner  # type: ignore[no-any-return]

    def _engine(self) -> AsyncEngine:
        if getattr(self._local, "engine", None) is None:
            self._local.engine = self._database.async_engine()
        return self._local.engine  # type: ignore[no-any-return]
