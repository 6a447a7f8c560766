"""Run: one call of a handler, without pool and worker, as a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from sqlalchemy.util import greenlet_spawn

from tasks_app.domain.creation.new_task import NewTask, validate
from tasks_app.domain.handlers.spec import Handler, HandlerSpec
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.domain.tasks.records import Task
from tasks_app.runtime.db.connections import Async, Raw, Sync
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.execution.invocation import arguments_of
from tasks_app.runtime.execution.lanes import Lane
from tasks_app.runtime.handlers.middleware import Middleware, chain
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.large_values.values import large_values
from tasks_app.runtime.payload_limit import creation_limit
from tasks_app.testing.contexts import ContextOptions, GivenAccess, MadeContext
from tasks_app.testing.transaction import NO_TASK, joined, lane_of

P = TypeVar("P")
R = TypeVar("R")
_OF_TASK = ["queue", "biz_key", "failures", "headers", "created_at", "due_at", "idempotency_key"]


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
    call = partial(_value, spec, task, payload, session, middleware, options)
    return in_own_loop(call) if spec.is_async else call()


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
    """Call what awaits through greenlets, in an event loop of its own.

    Raises:
        RuntimeError: a loop runs here already.
    """
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
    if isinstance(task, Task) and payload is None:
        text = encode_object(task.payload, "payload", creation_limit())
    else:
        text = validate(NewTask(spec.name, payload), spec, creation_limit()).payload

    def value(lane: Lane, access: Access) -> Any:
        context = MadeContext(access, _options_of(spec, task, options))
        arguments = arguments_of(spec, context, text) if spec.takes_payload else (context,)
        value = chain(middleware, context, lambda: lane.call(spec, arguments, None))
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
