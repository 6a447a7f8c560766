"""Contexts without a task: for unit tests of a handler."""

from __future__ import annotations

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
from tasks_app.runtime.db.connections import Async, Raw, Sync
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.checkpoint import LIMIT, Checkpoint
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.testing.given_access import GivenAccess, is_async

if TYPE_CHECKING:
    from tasks_app.runtime.locks.run_locks import HoldOfRun


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
    return context_for(GivenAccess(session, is_async=is_async(session)), options)


def context_for(access: Access, options: ContextOptions) -> MadeContext:
    """Return it, with the session that ``access`` has."""
    run = ActiveRun(_claimed(options), time.monotonic(), options.get("cancelled", False))
    run.stops = options.get("stopping", False)
    deadline, timeout = None, options.get("timeout")
    if timeout is not None:
        deadline = run.since + named_duration("timeout", timeout).total_seconds()
    return MadeContext(run, access, deadline, options.get("checkpoint"))


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


class LocklessContext(TaskContext[Any]):
    """A context whose locks hold nothing."""

    def locks(self, **_: Any) -> HoldOfRun:
        """Hold nothing."""
        return cast("HoldOfRun", nullcontext())


class MadeContext(LocklessContext):
    """A context whose checkpoint and locks exist nowhere else."""

    def __init__(
        self,
        run: ActiveRun,
        access: Access,
        deadline: float | None,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(run, access, deadline, log_prefix=True)
        self._memory = MemoryCheckpoint(access, checkpoint)

    def commit_by(self, save: Callable[[Connection], None]) -> None:  # noqa: ARG002  a context's
        """Refuse: there is no task whose row could be written."""
        raise RuntimeError("No task is behind this context. Use drain() to run a real one.")

    def _checkpoint(self) -> Checkpoint:
        return self._memory


class MemoryCheckpoint:
    """The checkpoint of a context without a task."""

    def __init__(self, access: Access, value: Mapping[str, Any] | None) -> None:
        self._access = access
        self._value = None if value is None else dict(value)
        self._places: dict[str, Any] = {}

    def get(self) -> Any:
        """Return it; in async handlers something to await."""
        return self._answered(self._value)

    def set(self, value: Mapping[str, Any] | None) -> None:
        """Check it, and keep it."""
        if value is not None:
            encode_object(value, "checkpoint", LIMIT)
        self._value = None if value is None else dict(value)

    def commit(self) -> Any:
        """Keep what was done; on a session of the test it only flushes."""
        return self._access.keep(lambda _: None) or self._answered(None)

    def places(self) -> Any:
        """Return where loops over chunks go on, by name."""
        return self._answered(self._places)

    def go_on_behind(self, name: str, place: list[list[Any]]) -> None:
        """Keep where a loop goes on."""
        self._places[name] = place

    def _answered(self, value: Any) -> Any:
        return _soon(value) if self._access.is_async else value


async def _soon(value: Any) -> Any:
    return value
