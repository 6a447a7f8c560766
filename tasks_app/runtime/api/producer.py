"""Creates tasks in the caller's transaction; nothing here commits."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import compress
from sys import modules
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from tasks_app.domain.creation import NewTask, check_many, validate_plain, validate_task
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import Handler, HandlerSpec
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.records import TaskId, TaskRow
from tasks_app.pool.tasks.create import acreate_many, acreate_one, create_many, create_one
from tasks_app.pool.tasks.large_values import has_large
from tasks_app.runtime.db.connections import (
    Async,
    AsyncRaw,
    Raw,
    Sync,
    checked_async,
    commit_of_django,
    is_async_raw,
    is_raw,
    noted,
    unwrapped,
    writing_connection_of,
)
from tasks_app.runtime.encryption.encryption import encryption
from tasks_app.runtime.encryption.values import sealed_rows
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.hints import HINTS, hints_of_new
from tasks_app.runtime.large_values import large_values
from tasks_app.runtime.startup import uncollected

if TYPE_CHECKING:
    from tasks_app.domain.flows import Flow
    from tasks_app.domain.tasks.call_payload import CeleryCall
    from tasks_app.domain.tasks.payload import Payload


P = TypeVar("P")
log = quiet_logger(__name__)
_LOGGED: set[str] = set()
"""Names whose queue is in the log already."""
_MOST_LOGGED = 1_000
MANY = 1_000
"""A call with so many tasks, or more, runs without the garbage collector."""


@overload
def create_task(
    session: Sync | Raw,
    task: Handler[P, Any],
    payload: P,
    *,
    then: NewTask | None = None,
    on_failure: NewTask | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId: ...


@overload
def create_task(
    session: Sync | Raw,
    task: Handler[None, Any],
    payload: None = None,
    *,
    then: NewTask | None = None,
    on_failure: NewTask | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId: ...


@overload
def create_task(
    session: Sync | Raw,
    task: str | CeleryCall,
    payload: Payload = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    then: NewTask | None = None,
    on_failure: NewTask | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId: ...


def create_task(
    session: Sync | Raw,
    task: Any,
    payload: Any = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    then: NewTask | None = None,
    on_failure: NewTask | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId:
    """Create one task in the caller's transaction: it exists if and only if that commits.

    ``session`` is a Session, a Connection, or a connection of psycopg itself. The last is fastest,
    but its commit is not seen: no hint is sent, and the next scan starts the task. Scoped sessions
    are accepted for what they hold, and so is Django's ``connection`` within ``atomic()``.
    ``task`` is a handler, a name, or a Celery task or signature. A Celery task takes ``args`` and
    ``kwargs``, all others a ``payload`` of the type that the handler declares. A ``chain``,
    ``group`` or ``chord`` becomes a flow; the id is that of its last task.

    >>> task_id = create_task(session, send_mail, {"to": "a@example.org"}, unique_key="a")
    >>> create_task(session, "mail.send", {"to": "a@example.org"}, unique_key="a") == task_id
    True

    ``then`` is created by the transaction in which the task succeeds, ``on_failure`` by the one in
    which it fails for good; both know the task as a group of one (see :func:`create_group`).

    Returns:
        The id; its ``created`` is False when another task holds the same name and unique_key, and
        its ``outcome`` is what became of that one.

    Raises:
        InvalidTaskError: refused before anything was written, with the path of the bad value.
        InvalidConnectionError: ``session`` is none of these, or Django's is in no transaction.
        UniqueKeyTakenError: another task holds the key, and ``on_conflict`` is ``raise``.
    """
    new = NewTask(task, payload, options, args, kwargs)
    if then is not None or on_failure is not None:
        from tasks_app.runtime.api.groups import create_group  # noqa: PLC0415  it is rare

        return create_group(session, [new], then=then, on_failure=on_failure).task_ids[0]
    if isinstance(task, dict) and (canvas := _canvas(new)) is not None:
        from tasks_app.runtime.api.flows import create_flow  # noqa: PLC0415  it is rare

        flow, last = canvas
        return cast("TaskId", create_flow(session, flow).task_ids[last])
    return create_ready(session, ready([admitted(new, large=True)]))[0]


def create_tasks(session: Sync | Raw, tasks: Sequence[NewTask]) -> list[TaskId]:
    """Create any number of tasks in few statements; ids in the order of ``tasks``.

    >>> mails = [NewTask(send_mail, {"to": f"{n}@example.org"}, delay="1h") for n in range(3)]
    >>> len(create_tasks(session, mails))
    3

    Raises:
        InvalidTaskError: one is refused, so none is written; its path begins ``tasks[i]``.
        UniqueKeyTakenError: a key is taken whose ``on_conflict`` is ``raise``; none is written.
    """
    check_many(tasks)
    with uncollected() if len(tasks) >= MANY else nullcontext():
        return create_ready(session, ready(admitted_many(tasks)))


@overload
async def acreate_task(
    session: Async | AsyncRaw,
    task: Handler[P, Any],
    payload: P,
    *,
    then: NewTask | None = None,
    on_failure: NewTask | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId: ...


@overload
async def acreate_task(
    session: Async | AsyncRaw,
    task: Handler[None, Any],
    payload: None = None,
    *,
    then: NewTask | None = None,
    on_failure: NewTask | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId: ...


@overload
async def acreate_task(
    session: Async | AsyncRaw,
    task: str | CeleryCall,
    payload: Payload = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    then: NewTask | None = None,
    on_failure: NewTask | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId: ...


@noted
async def acreate_task(
    session: Async | AsyncRaw,
    task: Any,
    payload: Any = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    then: NewTask | None = None,
    on_failure: NewTask | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId:
    """Create one task, as :func:`create_task`, in an async transaction."""
    new = NewTask(task, payload, options, args, kwargs)
    if then is not None or on_failure is not None:
        from tasks_app.runtime.api.groups import acreate_group  # noqa: PLC0415  it is rare

        return (await acreate_group(session, [new], then=then, on_failure=on_failure)).task_ids[0]
    if isinstance(task, dict) and (canvas := _canvas(new)) is not None:
        from tasks_app.runtime.api.flows import acreate_flow  # noqa: PLC0415  it is rare

        flow, last = canvas
        return cast("TaskId", (await acreate_flow(session, flow)).task_ids[last])
    return (await _acreate(session, [admitted(new, large=True)]))[0]


@noted
async def acreate_tasks(session: Async | AsyncRaw, tasks: Sequence[NewTask]) -> list[TaskId]:
    """Create any number of tasks, as :func:`create_tasks`, in an async transaction."""
    check_many(tasks)
    return await _acreate(session, admitted_many(tasks))


def create_ready(
    session: Sync | Raw, rows: Sequence[TaskRow], starts: Sequence[bool] | None = None
) -> list[TaskId]:
    """Insert checked rows, and hint at them when the session, or Django, commits.

    ``starts`` says of each row whether it may start when it is due; None: each may.
    """
    caller: Any = unwrapped(session)
    if not is_raw(caller):
        return create_rows(caller, rows, starts)
    after_commit = commit_of_django(session)
    with caller.transaction() if caller.autocommit and _are_several(rows) else nullcontext():
        ids = [create_one(caller, rows[0])] if len(rows) == 1 else create_many(caller, rows)
    after_commit(lambda: HINTS.offer(hints_of_new(*_starting(rows, ids, starts))))
    return ids


def _starting(
    rows: Sequence[TaskRow], ids: Sequence[TaskId], starts: Sequence[bool] | None
) -> tuple[Sequence[TaskRow], Sequence[TaskId]]:
    return (rows, ids) if starts is None else ([*compress(rows, starts)], [*compress(ids, starts)])


async def _acreate(session: Async | AsyncRaw, admitted: Sequence[TaskRow]) -> list[TaskId]:
    rows = await large_values().off_loop(ready, admitted)
    if not is_async_raw(session):
        return await checked_async(session).run_sync(create_rows, rows)  # one change of greenlets
    async with (
        session.transaction() if session.autocommit and _are_several(rows) else nullcontext()
    ):
        return (
            [await acreate_one(session, rows[0])]
            if len(rows) == 1
            else await acreate_many(session, rows)
        )


def _are_several(rows: Sequence[TaskRow]) -> bool:
    """Whether they may need more than one statement, and therefore one transaction."""
    terms = rows[0].terms if len(rows) == 1 else None
    return terms is None or has_large(rows) or terms.strict_order or terms.rule is not None


def create_rows(
    session: Sync, rows: Sequence[TaskRow], starts: Sequence[bool] | None = None
) -> list[TaskId]:
    """Insert checked rows, and hint at them when the session commits; see create_ready."""
    session = unwrapped(session)
    connection = writing_connection_of(session)
    ids = [create_one(connection, rows[0])] if len(rows) == 1 else create_many(connection, rows)
    HINTS.note(session, *_starting(rows, ids, starts))
    return ids


def admitted(new: NewTask, *, large: bool = False) -> TaskRow:
    """Return the row that :func:`create_task` would insert.

    ``large``: its payload may be a large value, which :func:`ready` moves out of the row.
    """
    match new.task:
        case str():
            spec = HANDLERS.specs.get(new.task)
        case Handler():
            spec = new.task.spec
        case _:
            new, spec = _translated(new)
    values = large_values()
    row = validate_task(new, spec, values.payload_limit if large else values.row_limit)
    name = row.terms.name
    if (
        spec is None
        and row.terms.queue == "default"
        and name not in _LOGGED
        and (new.options or {}).get("queue") is None
        and len(_LOGGED) < _MOST_LOGGED
    ):
        _LOGGED.add(name)  # a pause of the handler's own queue would not stop these tasks
        log.info(
            "%s has no handler in this process, so its tasks go to the queue default. "
            "Import the handler's module, or give queue=.",
            name,
        )
    return row


def ready(rows: Sequence[TaskRow]) -> Sequence[TaskRow]:
    """Return the rows as they are stored: traced, encrypted, large payloads outside of them."""
    if "opentelemetry.trace" in modules:
        from tasks_app.runtime.tracing.tracing import traced_rows  # noqa: PLC0415  who needs it

        rows = traced_rows(rows)
    asks = HANDLERS.any_encrypts or encryption().patterns
    stored = sealed_rows(rows, HANDLERS.encrypted) if asks else rows
    values = large_values()
    if values.payload_limit == values.row_limit:
        return stored
    return [
        values.outside(row, encrypted=row.payload is not plain.payload)
        if values.has_large_payload(plain.payload)
        else row
        for plain, row in zip(rows, stored, strict=True)
    ]


def admitted_many(tasks: Sequence[NewTask]) -> list[TaskRow]:
    """Return the rows of all; in a big call most tasks are like the one before."""
    limit = large_values().payload_limit
    rows: list[TaskRow] = []
    like, terms = None, None
    for place, new in enumerate(tasks):
        row = validate_plain(new, terms, limit) if terms and new.task is like else None
        if row is None:
            try:
                row = admitted(new, large=True)
            except InvalidTaskError as error:
                raise error.at(f"tasks[{place}]") from None
            spec = HANDLERS.specs.get(new.task) if isinstance(new.task, str) else None
            any_payload = isinstance(new.task, str) and (
                spec is None or (spec.payload_type is None and spec.locks is None)
            )
            plain = any_payload and not new.options
            like, terms = (new.task, row.terms) if plain else (None, None)
        rows.append(row)
    return rows


TRANSLATION = "tasks_app.broker.translation"
CANVAS = "tasks_app.broker.canvas"
"""The modules of a higher room that know Celery. Producers that use no Celery load none."""


def _canvas(new: NewTask) -> tuple[Flow, str] | None:
    """Return a canvas of Celery as a flow, with the step whose id counts; None: it is none."""
    if "celery" not in modules:
        return None
    found: tuple[Flow, str] | None = importlib.import_module(CANVAS).flow_of(new)
    return found


def _translated(new: NewTask) -> tuple[NewTask, HandlerSpec | None]:
    """Return a task that is neither a name nor a handler by its name, with its handler if known."""
    if "celery" in modules:
        answer: tuple[NewTask, HandlerSpec | None] | None
        answer = importlib.import_module(TRANSLATION).translate(new)
        if answer is not None:
            return answer
    if inspect.isroutine(new.task):
        what = "is a function that is no handler"
        raise InvalidTaskError("task", what, "a task's name, or a function with @handler before it")
    allowed = "a task's name, or a handler, after the session: create_task(session, task, payload)"
    of_payload = isinstance(new.task, dict | list)
    missing = ", as a payload is: the session comes first, and is missing" if of_payload else ""
    raise InvalidTaskError("task", f"is of type {type(new.task).__name__}{missing}", allowed)
