"""Invocation: from a claimed task to what its handler returned, through all middleware."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import psycopg
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only as await_

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import UnreadableTaskError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.settlement import succeeded
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.payload_type import explain
from tasks_app.domain.tasks.run import ClaimedTask, Fence, Settlement
from tasks_app.pool.runs.claim import fetch_payload
from tasks_app.runtime.db.async_transaction import AsyncTransaction
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_lost
from tasks_app.runtime.db.sync_transaction import PlainTransaction
from tasks_app.runtime.db.transaction import Transaction
from tasks_app.runtime.encryption.encryption import Encryption
from tasks_app.runtime.encryption.secrecy import LARGE, STORED, Secrecy
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.execution.time_limits import time_limit
from tasks_app.runtime.flow_control.dependency_report import DependencyCounts
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.middleware import Middleware, chain
from tasks_app.runtime.large_values.stores import LargeStoreError
from tasks_app.runtime.large_values.values import LargeValues

log = quiet_logger(__name__)


class FenceLostError(Exception):
    """The lease was lost before the handler was called. Ours alone: no handler can raise it."""


class NotBegunError(Exception):
    """The handler was not called, but the run may still be ours, and is to be given back."""


class Invocation:
    """Calls handlers for one child."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        guard: ProcessGuard,
        middleware: Sequence[Middleware] = (),
        plain_lane: Callable[..., Any] | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._middleware = middleware
        self.dependencies = DependencyCounts()
        self.plain: SyncLane = (plain_lane or SyncLane)(database, guard)
        self._async = AsyncLane(database, guard, settings.async_connections)
        self.secrecy = Secrecy(Encryption(settings))
        self._large = LargeValues(settings)

    def lane(self, spec: HandlerSpec) -> Lane:
        return self._async if spec.is_async else self.plain

    def make(
        self, run: ActiveRun, spec: HandlerSpec, context: TaskContext, limit: float | None
    ) -> Settlement:
        """Call the handler and return its success; whatever it raises comes out.

        Raises:
            FenceLostError: the run is not ours any more.
            NotBegunError: nothing was called: no payload came, or the lease may be over.
            MissingKeyError: nothing was called: there is no key to decrypt or to encrypt with.
        """
        lane = self._async if spec.is_async else self.plain
        arguments = self._arguments(run, spec, lane, context) if spec.takes_payload else (context,)
        task = run.task
        may_be = self.secrecy.listed or spec.encrypted or (task.payload or "").startswith(STORED)
        secret = may_be and self.secrecy.begin(task, spec)
        if time.monotonic() >= run.held_until:
            log.warning("task %s: not begun, its lease may be over", task.task_id)
            raise NotBegunError
        call = partial(lane.call, spec, arguments, limit)
        if self._middleware:
            value = chain(self._middleware, context, partial(self.dependencies.watch, spec, call))
        elif spec.depends_on is not None:
            value = self.dependencies.watch(spec, call)
        else:
            value = call()
        result = None if value is None else self._large.encoded(value, spec.to_json)
        large = result is not None and self._large.has_large_result(result)
        if secret and result is not None:
            result = self.secrecy.result(result, task.name)
        if large and result is not None:
            begin, task_id = self._database.begin, task.task_id
            result = lane.aside(partial(self._large.keep_result, begin, task_id, result))
        run_ms = round((time.monotonic() - run.since) * 1000)
        return succeeded(task, result, run_ms, run.since)

    async def close(self) -> None:
        """Close the event loop's connections; to be awaited in that loop."""
        await self._async.close()

    def _arguments(
        self, run: ActiveRun, spec: HandlerSpec, lane: Lane, context: TaskContext
    ) -> tuple[Any, ...]:
        task = run.task
        text = task.payload
        if text is None or text.startswith(LARGE):
            try:
                text = lane.aside(lambda: self._fetched(task))
            except (SQLAlchemyError, LargeStoreError) as error:
                if isinstance(error, LargeStoreError) or is_lost(error):
                    raise NotBegunError from error
                raise
        if text is None:
            raise FenceLostError
        text = self.secrecy.payload(run, text)
        try:
            return (context, spec.payload(decode(text, "payload")))
        except ValidationError as error:
            path, problem = explain(error)
            raise Fail(f"{path} {problem}") from None
        except UnreadableTaskError as error:
            raise Fail(str(error)) from None

    def _fetched(self, task: ClaimedTask) -> str | None:
        text = task.payload
        if text is None:
            with self._database.begin() as connection:
                text = fetch_payload(connection, task.fence)
        return text and self._large.payload(self._database.begin, task.task_id, text)


T = TypeVar("T")


class Lane(Protocol):
    """One way to call handlers."""

    def transaction(self, fence: Fence, *, more: bool = False) -> Transaction:
        """Return a new, unopened transaction; ``more``: the thread's next run follows at once."""

    def call(self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None) -> Any:
        """Run the handler under its time limit and return what it returned."""

    def aside(self, work: Callable[[], T]) -> T:
        """Do blocking work of ours where it holds up no other run."""


class SyncLane:
    """Calls plain functions."""

    def __init__(self, database: Database, guard: ProcessGuard) -> None:
        self._guard = guard
        self._database = database
        self._begun: dict[int, HandlerConnection] = {}

    def transaction(self, fence: Fence, *, more: bool = False) -> Transaction:
        return PlainTransaction(self._database, fence, self._begun if more else None)

    def rest(self) -> None:
        """End the transaction that was begun ahead for this thread: no run follows."""
        begun = self._begun.pop(threading.get_ident(), None)
        if begun is not None:
            with suppress(psycopg.Error):  # it is gone anyway
                begun.rest()

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

    def transaction(self, fence: Fence, *, more: bool = False) -> AsyncTransaction:  # noqa: ARG002
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
                        return await spec.function(*arguments), None
            except TimeoutError as error:
                expired = limit is not None and scope.expired()
                return None, spec.timeout_error(limit or 0.0) if expired else error
            except BaseException as error:
                return None, error

        task = asyncio.get_running_loop().create_task(limited(), name=spec.name)
        value, error = await_(task)
        if error is not None:
            raise error
        return value

    def aside(self, work: Callable[[], T]) -> T:
        """Do blocking work of ours in a thread, so that the loop goes on."""
        return await_(asyncio.to_thread(work))

    async def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.dispose()
