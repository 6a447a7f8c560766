"""Lanes: plain and async handlers are called differently, each with a transaction of its kind."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only as await_

from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.run import Fence
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.run_transaction import AsyncTransaction, RunTransaction
from tasks_app.runtime.db.transaction import Transaction
from tasks_app.runtime.execution.pools import unlisted
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.handlers.time_limits import time_limit

T = TypeVar("T")


class SyncLane:
    """Calls plain functions."""

    def __init__(self, database: Database, guard: ProcessGuard) -> None:
        self._guard = guard
        self._database = database

    def transaction(self, fence: Fence) -> Transaction:
        """Return a new, unopened transaction."""
        return RunTransaction(self._database.handler_engine, fence)

    def call(self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None) -> Any:
        """Run the function; the limit is raised in it where signals allow.

        It runs in a copy of the context, so that its context variables end with it.
        """
        with self._guard:
            if limit is None or spec.keeps_timeout:
                return contextvars.copy_context().run(spec.function, *arguments)
            with time_limit(limit, spec.timeout_error):
                return contextvars.copy_context().run(spec.function, *arguments)

    def aside(self, work: Callable[[], T]) -> T:
        """Do it here: this thread has one run."""
        return work()


class AsyncLane:
    """Calls coroutine functions in the async pool's event loop.

    A run is plain code, around handlers of both kinds; around this one it is a greenlet, which
    waits here while the loop goes on with others.
    """

    def __init__(self, database: Database, guard: ProcessGuard, connections: int) -> None:
        self._database = database
        self._guard = guard
        self._connections = connections
        self._engine: AsyncEngine | None = None

    def transaction(self, fence: Fence) -> AsyncTransaction:
        if self._engine is None:
            self._engine = self._database.async_engine(self._connections)
        return AsyncTransaction(self._engine, fence)

    def call(self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None) -> Any:
        """Run the coroutine; the limit cancels it at its next await.

        In a task of its own: a cancellation that it left pending must not hit our COMMIT. What it
        raised comes back as a value: a SystemExit would end the whole event loop.
        """

        async def limited() -> tuple[Any, BaseException | None]:
            scope = asyncio.timeout(limit)
            try:
                async with scope:
                    with self._guard:
                        value = await spec.function(*arguments)
                        arguments[0].check_awaited()
                        return value, None
            except TimeoutError as error:
                expired = limit is not None and scope.expired()
                return None, spec.timeout_error(limit or 0.0) if expired else error
            except BaseException as error:
                return None, error

        value, error = await_(unlisted(limited(), spec.name))
        if error is not None:
            raise error
        return value

    def aside(self, work: Callable[[], T]) -> T:
        """Do blocking work of ours in a thread, so that the loop goes on.

        A run whose handler has returned may be ended where no loop is.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return work()
        return await_(asyncio.to_thread(work))

    async def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.dispose()


Lane: TypeAlias = SyncLane | AsyncLane
"""One way to call handlers."""
