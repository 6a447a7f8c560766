"""Calls: from a claimed task to what its handler returned, through all middleware."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import InvalidTaskError, UnreadableTaskError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.settlement import succeeded
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.payload import decode, encode
from tasks_app.domain.tasks.payload_type import explain
from tasks_app.domain.tasks.records import ClaimedTask, Settlement
from tasks_app.pool.runs.claim import fetch_payload
from tasks_app.runtime.db.database import Database, is_lost
from tasks_app.runtime.execution.lanes import AsyncLane, Lane, SyncLane
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.flow_control.dependency_report import DependencyTally
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.middleware import Middleware, chain

log = quiet_logger(__name__)


class FenceLostError(Exception):
    """Our own, so that no handler can raise it: the handler was not even called."""


class NotBegunError(Exception):
    """As above; the run may still be ours, and is to be given back."""


class Invocation:
    """Calls handlers for one child."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        aftermath: ProcessGuard,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._settings = settings
        self._database = database
        self._middleware = middleware
        self.tally = DependencyTally()
        self.plain = SyncLane(database, aftermath)
        self._async = AsyncLane(database, aftermath, settings.async_connections)

    def lane(self, spec: HandlerSpec) -> Lane:
        """Return the way in which this handler is called."""
        return self._async if spec.is_async else self.plain

    def make(
        self, run: ActiveRun, spec: HandlerSpec, context: TaskContext, limit: float | None
    ) -> Settlement:
        """Call the handler and return its success; whatever it raises comes out.

        Raises:
            FenceLostError: the run is not ours any more.
            NotBegunError: nothing was called: the payload could not be fetched, or the lease may
                be over. A process that was stopped meanwhile, say, would else begin what others
                have declared dead.
        """
        task = run.task
        lane = self._async if spec.is_async else self.plain
        arguments = self._arguments(task, spec, lane, context) if spec.takes_payload else (context,)
        if time.monotonic() >= run.held_until:
            log.warning("task %s: not begun, its lease may be over", task.task_id)
            raise NotBegunError
        if self._middleware:
            value = chain(
                self._middleware,
                context,
                lambda: self.tally.watch(spec, lambda: lane.call(spec, arguments, limit)),
            )
        elif spec.depends_on is not None:
            value = self.tally.watch(spec, lambda: lane.call(spec, arguments, limit))
        else:
            value = lane.call(spec, arguments, limit)
        result = None if value is None else self._result(value, spec)
        return succeeded(task, result, round((time.monotonic() - run.since) * 1000))

    async def close(self) -> None:
        """Close the connections of the event loop, in it."""
        await self._async.close()

    def _arguments(
        self, task: ClaimedTask, spec: HandlerSpec, lane: Lane, context: TaskContext
    ) -> tuple[Any, ...]:
        text = task.payload
        if text is None:
            try:
                text = lane.aside(lambda: self._fetched(task))
            except SQLAlchemyError as error:
                if is_lost(error):
                    raise NotBegunError from error
                raise
        if text is None:
            raise FenceLostError
        try:
            return (context, spec.payload(decode(text, "payload")))
        except ValidationError as error:
            path, problem = explain(error)
            raise Fail(f"{path} {problem}") from None
        except UnreadableTaskError as error:
            raise Fail(str(error)) from None

    def _fetched(self, task: ClaimedTask) -> str | None:
        with self._database.begin() as connection:
            return fetch_payload(connection, task.fence)

    def _result(self, value: Any, spec: HandlerSpec) -> str:
        try:
            return encode(value, "result", self._settings.result_limit, spec.to_json)
        except InvalidTaskError as error:
            raise Fail(f"The handler's result cannot be stored: {error}") from None
