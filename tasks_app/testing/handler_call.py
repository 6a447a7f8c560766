"""A handler called without a task: by the test itself with a made context, or by ``run``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID, uuid4

from sqlalchemy import Connection
from sqlalchemy.orm import Session
from sqlalchemy.util import greenlet_spawn

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.durations import Duration, named_duration
from tasks_app.domain.flows import StepEnd
from tasks_app.domain.handlers.spec import Handler, HandlerSpec
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.domain.tasks.records import Task
from tasks_app.domain.tasks.run import ClaimedTask, Fence
from tasks_app.pool.flows import NeededStep
from tasks_app.runtime.db.connections import Async, Raw, Sync, is_async_session, unwrapped
from tasks_app.runtime.db.transaction import Access, carry_out
from tasks_app.runtime.execution.invocation import Lane, arguments_of
from tasks_app.runtime.handler_db.statements import write_of
from tasks_app.runtime.handlers.checkpoint import (
    LIMIT,
    ActiveRun,
    AsyncCheckpoint,
    PlainCheckpoint,
    RunCheckpoint,
)
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.runtime.handlers.middleware import Middleware, chain
from tasks_app.runtime.handlers.needs import payload_of
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.handlers.steps import steps_of
from tasks_app.runtime.large_values import large_values
from tasks_app.testing.transaction import NO_TASK, joined, lane_of, session_of

if TYPE_CHECKING:
    from tasks_app.runtime.locks.run_locks import HoldOfRun

P = TypeVar("P")
R = TypeVar("R")
_OF_TASK = ["queue", "biz_key", "failures", "headers", "created_at", "due_at", "idempotency_key"]


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
    steps: Mapping[str, Any]
    """Results of steps that an earlier attempt has kept; a sleep that is over has any."""
    needs: Mapping[str, Any]
    """Results of the steps that it needs, by name; a ``StepEnd`` for one that did not succeed."""
    events: Mapping[str, Any]
    """Payloads of events that it waits for, by key. None: the time-out came first."""
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
    access = GivenAccess(session, is_async=is_async_session(unwrapped(session)))
    return MadeContext(access, options)


class _RunOptions(ContextOptions, total=False):
    session: Sync | Raw | None
    middleware: Sequence[Middleware]


@overload
def run(
    task: Handler[P, Coroutine[Any, Any, R]], payload: P, **options: Unpack[_RunOptions]
) -> R: ...
@overload
def run(task: Handler[P, R], payload: P, **options: Unpack[_RunOptions]) -> R: ...
@overload
def run(
    task: Handler[None, Coroutine[Any, Any, R]],
    payload: None = None,
    **options: Unpack[_RunOptions],
) -> R: ...
@overload
def run(task: Handler[None, R], payload: None = None, **options: Unpack[_RunOptions]) -> R: ...
@overload
def run(
    task: str | Task,
    payload: Any = None,
    *,
    registry: Registry = HANDLERS,
    **options: Unpack[_RunOptions],
) -> Any: ...
def run(
    task: Any,
    payload: Any = None,
    *,
    session: Sync | Raw | None = None,
    middleware: Sequence[Middleware] = (),
    registry: Registry = HANDLERS,
    **options: Unpack[ContextOptions],
) -> Any:
    """Call a handler once and return what it returned, or raise what it raised.

    ``task`` is a handler, its name, or a task that :func:`created` has found; such a one brings its
    payload. The payload is checked and stored as JSON, and read again, as on its way through the
    pool; whether the result could be stored is checked, too. Async handlers are run to their end.
    ``options`` are those of :func:`make_context`. No time limit and no retry. The handler has a
    session of its own, in a savepoint of the test's transaction.

    >>> run(send_mail, {"to": "a@example.org"}, session=session)
    {'sent': 'a@example.org'}
    >>> run("card.charge", {"order": 7})
    Traceback (most recent call last):
    ConnectionRefusedError: no bank

    Raises:
        InvalidTaskError: ``create_task`` would refuse the payload.
        LookupError: no handler has this name.
        Exception: whatever the handler raises, outcomes as ``Snooze`` among it.
    """
    spec = _spec_of(task, registry)
    given = spec, task, payload, session, middleware, options
    return in_own_loop(_value, *given) if spec.is_async else _value(*given)


async def arun(
    task: Handler[P, Coroutine[Any, Any, R]] | str | Task,
    payload: Any = None,
    *,
    session: Async | Sync | Raw | None = None,
    middleware: Sequence[Middleware] = (),
    registry: Registry = HANDLERS,
    **options: Unpack[ContextOptions],
) -> Any:
    """Do as :func:`run`, in the event loop of an async test."""
    spec = _spec_of(task, registry)
    return await greenlet_spawn(_value, spec, task, payload, session, middleware, options)


def in_own_loop(function: Callable[..., R], *arguments: Any) -> R:
    """Call what awaits through greenlets, in an event loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(greenlet_spawn(function, *arguments))
    raise RuntimeError("An event loop runs here already. Use: await arun(…), await adrain(…)")


def _spec_of(task: Any, registry: Registry) -> HandlerSpec:
    if isinstance(task, Handler):
        return task.spec
    name = task.name if isinstance(task, Task) else task
    spec = registry.get(name)
    if spec is None:
        known = ", ".join(registry.names) or "none"
        raise LookupError(
            f"No handler is named {name!r}. Import the module that declares it. Known: {known}."
        )
    return spec


def _value(
    spec: HandlerSpec,
    task: Any,
    payload: Any,
    session: Any,
    middleware: Sequence[Middleware],
    options: ContextOptions,
) -> Any:
    """Call the handler; an async one in a greenlet of SQLAlchemy's."""
    limit = large_values().payload_limit
    if isinstance(task, Task) and payload is None:
        text = encode_object(task.payload, "payload", limit)
    else:
        text = validate_task(NewTask(spec.name, payload), spec, limit).payload

    def value(lane: Lane, access: Access) -> Any:
        context = MadeContext(access, _options_of(spec, task, options))
        arguments = arguments_of(spec, context, text) if spec.takes_payload else (context,)
        value = chain(middleware, context, lambda: lane.call(spec, arguments, None, context.run))
        if value is not None:
            large_values().encoded(value, spec.to_json)
        context.close()
        return value

    if session is None:
        return value(lane_of(spec, None), GivenAccess(None, is_async=spec.is_async))
    with joined(session) as database:
        lane = lane_of(spec, database)
        transaction = lane.transaction(NO_TASK.fence)
        with database.run(transaction):
            found = value(lane, transaction)
            transaction.conclude(NO_TASK)
    return found


def _options_of(spec: HandlerSpec, task: Any, given: ContextOptions) -> ContextOptions:
    """Return what is known of the task, and what the test says of it."""
    known: Any = {"name": spec.name, "queue": spec.queue, "max_attempts": spec.max_attempts}
    if isinstance(task, Task):
        known |= {name: getattr(task, name) for name in _OF_TASK}
        known |= {"task_id": task.id, "attempt": task.attempt + 1}
    return {**known, **given}


class LocklessContext(TaskContext[Any]):
    """A context whose locks hold nothing."""

    def locks(self, **_: Any) -> HoldOfRun:
        return cast("HoldOfRun", nullcontext())


class MadeContext(LocklessContext):
    """A context whose checkpoint and locks exist nowhere else."""

    def __init__(self, access: Access, options: ContextOptions) -> None:
        if unknown := options.keys() - ContextOptions.__annotations__.keys():
            raise TypeError(f"A context has no {', '.join(sorted(unknown))}.")
        self.run = run = ActiveRun(
            _claimed(options), time.monotonic(), options.get("cancelled", False)
        )
        run.stops = options.get("stopping", False)
        deadline, timeout = None, options.get("timeout")
        if timeout is not None:
            deadline = run.since + named_duration("timeout", timeout).total_seconds()
        super().__init__(run, access, deadline, log_prefix=True)
        kind = AsyncMemory if access.is_async else PlainMemory
        self._point = kind(run, access, options.get("checkpoint"))
        self._steps = steps_of(run, access, self._point, options.get("steps", {}))

        self._options = options

    def needs(self) -> Any:
        if "needs" not in self._options:
            return super().needs()
        return self._known({n: _needed(n, v) for n, v in self._options["needs"].items()})

    def event(self, key: str, kind: Any = None) -> Any:
        if "events" not in self._options:
            return super().event(key, kind)
        return self._known(payload_of({**self._options["events"]}, key, kind))

    def wait_event(self, key: str, timeout: Duration | None = None, *, kind: Any = None) -> Any:
        if key in self._options.get("events", {}):
            return self.event(key, kind)
        return super().wait_event(key, timeout, kind=kind)

    def _known(self, value: Any) -> Any:
        async def awaited() -> Any:
            return value

        return awaited() if self._access.is_async else value

    def commit_by(self, save: Callable[[Connection], None]) -> None:  # noqa: ARG002  a context's
        raise RuntimeError("No task is behind this context. Use drain() to run a real one.")


def _needed(step: str, value: Any) -> NeededStep:
    if isinstance(value, StepEnd):
        return NeededStep(step, 1, step, value, None)
    return NeededStep(step, 1, step, StepEnd.SUCCESS, value)


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


class _InMemory(RunCheckpoint):
    """A checkpoint that the context keeps, as no task is there to keep it."""

    def __init__(self, run: ActiveRun, access: Access, kept: Mapping[str, Any] | None) -> None:
        super().__init__(run, access)
        self.set(kept)
        self._known = True

    def _keep(self, connection: Connection, step: tuple[str, str] | None = None) -> None:
        """Write nothing."""


class PlainMemory(_InMemory, PlainCheckpoint):
    """For plain handlers."""


class AsyncMemory(_InMemory, AsyncCheckpoint):
    """For async handlers."""


class GivenAccess:
    """The transaction of the test, as a handler sees it."""

    def __init__(self, given: Any, *, is_async: bool) -> None:
        self.is_async = is_async
        self._outer = None if given is None else session_of(given)

    @property
    def session(self) -> Any:
        if self._outer is None:
            raise RuntimeError(
                "This context has no session. Give it the one of your test, as session=…"
            )
        return self._outer

    @property
    def connection(self) -> Connection:
        if self.is_async:
            raise TypeError("In async handlers use: await ctx.session.connection()")
        return cast("Connection", self.session.connection())

    def read(self, find: Callable[[Connection], Any]) -> Any:
        if not self.is_async:
            return find(self.connection)

        async def found() -> Any:
            return await (await self.session.connection()).run_sync(find)

        return found()

    def write(self, query: str, parameters: Any) -> None:
        """Send it at once: there is no outcome with which it could travel."""
        write = write_of(query, parameters)
        if self.is_async:
            raise RuntimeError(
                "ctx.write sends with the outcome, and this context of an async handler has none. "
                "Run the task: drain(), or adrain() in an async test."
            )
        carry_out(self.connection, [write])

    active = True

    def keep(self, save: Callable[[Connection], None]) -> Any:  # noqa: ARG002  an Access's
        """Write what the session holds; in async handlers something to await."""
        if self._outer is not None:
            return self._outer.flush()
        return asyncio.sleep(0) if self.is_async else None

    def check_awaited(self) -> None:
        """Pass: a session of the test notes nothing."""
