"""Contexts without a task: for unit tests of a handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, overload
from uuid import UUID, uuid4

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from tasks_app.domain.durations import Duration, named_duration
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.domain.tasks.run import ClaimedTask, Fence
from tasks_app.runtime.db.connections import Async, Raw, Sync, is_async_session, unwrapped
from tasks_app.runtime.db.transaction import Access, carry_out
from tasks_app.runtime.handler_db.late_writes import write_of
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.checkpoint import LIMIT, AsyncPoint, PlainPoint
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.testing.transaction import session_of

if TYPE_CHECKING:
    from types import FrameType

    from tasks_app.runtime.locks.run_locks import HoldOfRun

NO_OUTCOME = (
    "ctx.write sends with the outcome, and this context of an async handler has none. "
    "Run the task: drain(), or adrain() in an async test."
)
NO_SESSION = "This context has no session. Give it the one of your test, as session=…"


class ContextOptions(TypedDict, total=False):
    """What a made context says of its task and its run."""

    name: str
    task_id: int
    queue: str
    biz_key: str | None
    attempt: int
    failures: int
    max_attempts: int
    headers: Mapping[str, Any] | None
    created_at: datetime
    due_at: datetime
    idempotency_key: UUID
    checkpoint: Mapping[str, Any] | None
    """What an earlier attempt has kept."""
    timeout: Duration | None
    """How long ``ctx.remaining`` says that there is."""
    cancelled: bool
    """Whether somebody has cancelled the task."""
    stopping: bool
    """Whether the worker stops."""


@overload
def make_context(session: Async, **options: Unpack[ContextOptions]) -> AsyncTaskContext: ...
@overload
def make_context(
    session: Sync | Raw | None = None, **options: Unpack[ContextOptions]
) -> TaskContext[Session]: ...
def make_context(session: Any = None, **options: Unpack[ContextOptions]) -> TaskContext[Any]:
    """Return a context with which your test calls a handler; there is no task behind it.

    ``session`` is what ``create_task`` takes, or for an async handler what ``acreate_task`` takes;
    ``ctx.session`` works in it. ``ctx.commit()`` only flushes, and keeps its checkpoint in the
    context. ``ctx.locks()`` holds nothing.

    >>> send_mail(make_context(session, attempt=2), {"to": "a@example.org"})
    {'sent': 'a@example.org'}
    """
    if unknown := options.keys() - ContextOptions.__annotations__.keys():
        raise TypeError(f"A context has no {', '.join(sorted(unknown))}.")
    access = GivenAccess(session, is_async=is_async_session(unwrapped(session)))
    return MadeContext(access, options)


class LocklessContext(TaskContext[Any]):
    """A context whose locks hold nothing."""

    def locks(self, **_: Any) -> HoldOfRun:
        return cast("HoldOfRun", nullcontext())


class MadeContext(LocklessContext):
    """A context whose checkpoint and locks exist nowhere else."""

    def __init__(self, access: Access, options: ContextOptions) -> None:
        run = ActiveRun(_claimed(options), time.monotonic(), options.get("cancelled", False))
        run.stops = options.get("stopping", False)
        deadline, timeout = None, options.get("timeout")
        if timeout is not None:
            deadline = run.since + named_duration("timeout", timeout).total_seconds()
        super().__init__(run, access, deadline, log_prefix=True)
        kind = AsyncMemory if access.is_async else PlainMemory
        self._point = kind(run, access, options.get("checkpoint"))

    def commit_by(self, save: Callable[[Connection], None]) -> None:  # noqa: ARG002  a context's
        raise RuntimeError("No task is behind this context. Use drain() to run a real one.")


def _claimed(options: ContextOptions) -> ClaimedTask:
    now = datetime.now(UTC)  # noqa: TID251  there is no database to ask
    created_at = options.get("created_at", now)
    headers, failures = options.get("headers"), options.get("failures", 0)
    return ClaimedTask(
        fence=Fence(options.get("task_id", 1), options.get("attempt", 1), uuid4()),
        name=options.get("name", "test"),
        queue=options.get("queue", "default"),
        biz_key=options.get("biz_key"),
        payload=None,
        headers=encode_object(headers, "headers", LIMIT) if headers else None,
        failures=failures,
        crashes=0,
        retry_level=failures,
        max_attempts=options.get("max_attempts", 3),
        at_most_once=False,
        retry=None,
        timeout_ms=None,
        hard_timeout_ms=None,
        key_text=str(options.get("idempotency_key", uuid4())),
        created_s=created_at.timestamp(),
        due_s=options.get("due_at", created_at).timestamp(),
        cancel_requested=False,
    )


class _InMemory:
    """A checkpoint that the context keeps, as no task is there to keep it."""

    def __init__(self: Any, run: ActiveRun, access: Access, kept: Mapping[str, Any] | None) -> None:
        super().__init__(run, access)  # type: ignore[call-arg]  # a point's
        self.set(kept)
        self._known = True

    def _keep(self, connection: Connection) -> None:
        """Write nothing."""


class PlainMemory(_InMemory, PlainPoint):
    """For plain handlers."""


class AsyncMemory(_InMemory, AsyncPoint):
    """For async handlers."""

    def note_made(self, made: Any, context: FrameType) -> None:
        """Note it where the session is a handler's own."""
        if not isinstance(self._access, GivenAccess):
            super().note_made(made, context)


class GivenAccess:
    """The transaction of the test, as a handler sees it."""

    def __init__(self, given: Any, *, is_async: bool) -> None:
        self.is_async = is_async
        self._outer = None if given is None else session_of(given)

    @property
    def session(self) -> Any:
        if self._outer is None:
            raise RuntimeError(NO_SESSION)
        return self._outer

    @property
    def connection(self) -> Connection:
        if self.is_async:
            raise TypeError("In async handlers use: await ctx.session.connection()")
        connection: Connection = self.session.connection()
        return connection

    def write(self, query: str, parameters: Any) -> None:
        """Send it at once: there is no outcome with which it could travel."""
        write = write_of(query, parameters)
        if self.is_async:
            raise RuntimeError(NO_OUTCOME)
        carry_out(self.connection, [write])

    active = True

    def keep(self, save: Callable[[Connection], None]) -> Any:  # noqa: ARG002  an Access's
        """Write what the session holds; in async handlers something to await."""
        if self._outer is not None:
            return self._outer.flush()
        return asyncio.sleep(0) if self.is_async else None

    def check_awaited(self) -> None:
        """Pass: a session of the test notes nothing."""
