"""Run: one call of a handler, without pool and worker, as a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pydantic import ValidationError
from sqlalchemy.util import greenlet_spawn

from tasks_app.domain.creation.new_task import NewTask, validate
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.spec import Handler, HandlerSpec
from tasks_app.domain.tasks.payload import encode, encode_object
from tasks_app.domain.tasks.payload_type import explain
from tasks_app.domain.tasks.records import Task
from tasks_app.runtime.db.connections import Async, Raw, Sync
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.execution.lanes import Lane
from tasks_app.runtime.handlers.middleware import Middleware, chain
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.payload_limit import creation_limit
from tasks_app.testing.contexts import ContextOptions, context_for
from tasks_app.testing.given_access import GivenAccess
from tasks_app.testing.one_connection import OneConnection, lane_of
from tasks_app.testing.savepoints import NO_TASK
from tasks_app.testing.sessions import joined

if TYPE_CHECKING:
    from typing import Unpack

P = TypeVar("P")
R = TypeVar("R")


@overload
def run(
    task: Handler[P, Coroutine[Any, Any, R]],
    payload: P,
    *,
    session: Sync | Raw | None = None,
    middleware: Sequence[Middleware] = (),
    **options: Unpack[ContextOptions],
) -> R: ...
@overload
def run(
    task: Handler[P, R],
    payload: P,
    *,
    session: Sync | Raw | None = None,
    middleware: Sequence[Middleware] = (),
    **options: Unpack[ContextOptions],
) -> R: ...
@overload
def run(
    task: Handler[None, Coroutine[Any, Any, R]],
    payload: None = None,
    *,
    session: Sync | Raw | None = None,
    middleware: Sequence[Middleware] = (),
    **options: Unpack[ContextOptions],
) -> R: ...
@overload
def run(
    task: Handler[None, R],
    payload: None = None,
    *,
    session: Sync | Raw | None = None,
    middleware: Sequence[Middleware] = (),
    **options: Unpack[ContextOptions],
) -> R: ...
@overload
def run(
    task: str | Task,
    payload: Any = None,
    *,
    session: Sync | Raw | None = None,
    middleware: Sequence[Middleware] = (),
    registry: Registry = HANDLERS,
    **options: Unpack[ContextOptions],
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
    call = _call_of(task, payload, session, registry, options)
    if not call.spec.is_async:
        return call.made(middleware)
    return in_own_loop(call.made, middleware)


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
    call = _call_of(task, payload, session, registry, options)
    return await greenlet_spawn(call.made, middleware)


class HandlerCall:
    """A handler with what it is called with."""

    def __init__(
        self, spec: HandlerSpec, payload: str, given: Any, options: ContextOptions
    ) -> None:
        self.spec = spec
        self._payload = payload
        self._given = given
        self._options = options

    def made(self, middleware: Sequence[Middleware]) -> Any:
        """Make it; an async one in a greenlet of SQLAlchemy's."""
        if self._given is None:
            lane = lane_of(self.spec, None)
            return self._value(lane, GivenAccess(None, is_async=self.spec.is_async), middleware)
        with joined(self._given) as connection:
            database = OneConnection(connection)
            lane = lane_of(self.spec, database)
            transaction = lane.transaction(NO_TASK.fence)
            with database.run(transaction):
                value = self._value(lane, transaction, middleware)
                transaction.conclude(NO_TASK)
        return value

    def _value(self, lane: Lane, access: Access, middleware: Sequence[Middleware]) -> Any:
        context = context_for(access, self._options)
        arguments = arguments_of(self.spec, context, self._payload)
        value = chain(middleware, context, lambda: lane.call(self.spec, arguments, None))
        checked_result(self.spec, value)
        context.close()
        return value


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


def _call_of(
    task: Any, payload: Any, given: Any, registry: Registry, options: ContextOptions
) -> HandlerCall:
    if isinstance(task, Task):
        known: ContextOptions = {
            "task_id": task.id,
            "queue": task.queue,
            "biz_key": task.biz_key,
            "attempt": task.attempt + 1,
            "failures": task.failures,
            "headers": task.headers,
            "created_at": task.created_at,
            "due_at": task.due_at,
            "idempotency_key": task.idempotency_key,
        }
        options = {**known, **options}
    spec = spec_of(task, registry)
    if isinstance(task, Task) and payload is None:
        text = encode_object(task.payload, "payload", creation_limit())
    else:
        text = validate(NewTask(spec.name, payload), spec, creation_limit()).payload
    of_handler: ContextOptions = {"name": spec.name, "queue": spec.queue}
    of_handler["max_attempts"] = spec.max_attempts
    return HandlerCall(spec, text, given, {**of_handler, **options})


def spec_of(task: Handler[Any, Any] | Task | str, registry: Registry) -> HandlerSpec:
    """Return the declaration.

    Raises:
        LookupError: no handler has this name.
    """
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


def arguments_of(spec: HandlerSpec, context: Any, payload: str) -> tuple[Any, ...]:
    """Return what the handler is called with, read from the payload as it is stored.

    Raises:
        Fail: the payload does not fit.
    """
    if not spec.takes_payload:
        return (context,)
    try:
        return (context, spec.payload(payload))
    except ValidationError as error:
        path, problem = explain(error)
        raise Fail(f"{path} {problem}") from None


def checked_result(spec: HandlerSpec, value: Any) -> None:
    """Raise what a worker would make of a result that cannot be stored."""
    try:
        if value is not None:
            encode(value, "result", creation_limit(), spec.to_json)
    except InvalidTaskError as error:
        raise Fail(f"The handler's result cannot be stored: {error}") from None
