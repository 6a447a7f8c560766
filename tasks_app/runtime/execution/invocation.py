"""Invocation: from a claimed task to what its handler returned, through all middleware."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.retention import parse_histories
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import UnreadableTaskError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.settlement import keeps_row, succeeded
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.payload_type import explain
from tasks_app.domain.tasks.run import ClaimedTask, Settlement
from tasks_app.pool.runs.claim import fetch_payload
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_lost
from tasks_app.runtime.encryption.encryption import Encryption
from tasks_app.runtime.encryption.secrecy import LARGE, STORED, Secrecy
from tasks_app.runtime.execution.lanes import AsyncLane, Lane, SyncLane
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.flow_control.dependency_report import DependencyCounts
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.middleware import Middleware, chain
from tasks_app.runtime.large_values.stores import LargeStoreError
from tasks_app.runtime.large_values import LargeValues

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
        self._histories = parse_histories(settings.history)

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
        run.is_kept = keeps_row(task, spec, self._histories)
        call = partial(lane.call, spec, arguments, limit)
        if self._middleware:
            value = chain(self._middleware, context, partial(self.dependencies.watch, spec, call))
        elif spec.depends_on is not None:
            value = self.dependencies.watch(spec, call)
        else:
            value = call()
        result = None if value is None else self._large.encoded(value, spec.to_json)
        if not run.is_kept:
            result = None
        large = result is not None and self._large.has_large_result(result)
        if secret and result is not None:
            result = self.secrecy.result(result, task.name)
        if large and result is not None:
            begin, task_id = self._database.begin, task.task_id
            result = lane.aside(partial(self._large.keep_result, begin, task_id, result))
        run_ms = round((time.monotonic() - run.since) * 1000)
        return succeeded(task, result, run_ms, run.since, is_kept=run.is_kept)

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
        return arguments_of(spec, context, self.secrecy.payload(run, text))

    def _fetched(self, task: ClaimedTask) -> str | None:
        text = task.payload
        if text is None:
            with self._database.begin() as connection:
                text = fetch_payload(connection, task.fence)
        return text and self._large.payload(self._database.begin, task.task_id, text)


def arguments_of(spec: HandlerSpec, context: TaskContext, payload: str) -> tuple[Any, ...]:
    """Return what the handler is called with; its payload is read from JSON text.

    Raises:
        Fail: the payload does not fit.
    """
    try:
        return (context, spec.payload(payload))
    except ValidationError as error:
        path, problem = explain(error)
        raise Fail(f"{path} {problem}") from None
    except UnreadableTaskError as error:
        raise Fail(str(error)) from None
