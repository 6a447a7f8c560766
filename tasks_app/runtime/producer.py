"""What producers and operators call, on a connection or session of their own.

Nothing here commits: the caller's transaction decides. Neither Celery nor a broker is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, Unpack

import psycopg
from pydantic import BaseModel
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from tasks_app.domain.admission import admit
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handler import HandlerSpec
from tasks_app.domain.settings import load_settings
from tasks_app.domain.task import NewTask, Task, TaskId, TaskOptions, TaskRow
from tasks_app.pool import browse
from tasks_app.pool.cancel import Cancelled, CancelledMany, cancel, cancel_many
from tasks_app.pool.create import acreate_many, acreate_one, create_many, create_one
from tasks_app.pool.requeue import Requeued, requeue
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.registry import HANDLERS, Handler
from tasks_app.runtime.translation import translated

Payload: TypeAlias = Mapping[str, Any] | BaseModel | None
Sync: TypeAlias = Session | Connection
Async: TypeAlias = AsyncSession | AsyncConnection
Raw: TypeAlias = psycopg.Connection[Any]
AsyncRaw: TypeAlias = psycopg.AsyncConnection[Any]


def create_task(
    session: Sync | Raw,
    task: Any,
    payload: Payload = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId:
    """Create one task in the caller's transaction: it exists if and only if that commits.

    ``session`` is a Session, a Connection, or a connection of psycopg itself: the fastest, but
    nobody learns there of a commit, so no hint is sent and the next scan starts the task.
    ``task`` is a name, a handler, or a Celery task or signature. What a Celery task is called with
    is given as ``args`` and ``kwargs``, to others a ``payload``.

    Returns:
        The id; its ``created`` is False when another task holds the same name and unique_key.

    Raises:
        InvalidTaskError: refused before anything was written, with the path of the bad value.
    """
    row = admitted(NewTask(task, payload, options, args, kwargs))
    if isinstance(session, psycopg.Connection):
        return create_one(session, row)
    return create_rows(session, [row])[0]


def create_tasks(session: Sync | Raw, tasks: Sequence[NewTask]) -> list[TaskId]:
    """Create any number of tasks in few statements; ids in the order of ``tasks``.

    Raises:
        InvalidTaskError: one is refused, so none is written; its path begins ``tasks[i]``.
    """
    rows = _admitted_many(tasks)
    if isinstance(session, psycopg.Connection):
        with session.transaction() if session.autocommit else nullcontext():
            return create_many(session, rows)
    return create_rows(session, rows)


async def acreate_task(
    session: Async | AsyncRaw,
    task: Any,
    payload: Payload = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId:
    """Create one task, as :func:`create_task`, in an async transaction."""
    row = admitted(NewTask(task, payload, options, args, kwargs))
    if isinstance(session, psycopg.AsyncConnection):
        return await acreate_one(session, row)
    return (await _acreate(session, [row]))[0]


async def acreate_tasks(session: Async | AsyncRaw, tasks: Sequence[NewTask]) -> list[TaskId]:
    """Create any number of tasks, as :func:`create_tasks`, in an async transaction."""
    rows = _admitted_many(tasks)
    if isinstance(session, psycopg.AsyncConnection):
        async with session.transaction() if session.autocommit else nullcontext():
            return await acreate_many(session, rows)
    return await _acreate(session, rows)


def hint_tasks(ids: Iterable[int], *, queue: str = "default") -> None:
    """Tell the broker of due tasks that you have committed on a connection of psycopg.

    They start at once instead of at the next scan. Nothing waits, and nothing fails.
    """
    HINTS.offer(queue, ids)


def get_task(session: Sync, task_id: int) -> Task | None:
    """Return the task from whichever pool it lies in, or None."""
    return browse.get(_connection(session), task_id)


def cancel_task(session: Sync, task_id: int) -> Cancelled:
    """Cancel a pending task at once; tell a running one, which will then not run again."""
    return cancel(_connection(session), task_id)


def cancel_tasks(
    session: Sync, *, name: str | None = None, biz_key: str | None = None
) -> CancelledMany:
    """Cancel all pending and running tasks with this name and biz_key.

    Raises:
        ValueError: neither is given, which would cancel everything.
    """
    if name is None and biz_key is None:
        raise ValueError("cancel_tasks needs name= or biz_key=; it never cancels everything.")
    return cancel_many(_connection(session), name=name, biz_key=biz_key)


def requeue_task(session: Sync, task_id: int) -> Requeued:
    """Return a finished task to the pending pool: same id, charges from 0.

    Raises:
        UniqueKeyTakenError: another pending task has its name and unique_key.
    """
    return requeue(_connection(session), task_id)


def create_rows(session: Sync, admitted: Sequence[TaskRow]) -> list[TaskId]:
    """Create tasks that are checked."""
    connection = _connection(session)
    rows = HINTS.expected(session, admitted)
    one = len(rows) == 1
    ids = [create_one(connection, rows[0])] if one else create_many(connection, rows)
    HINTS.note(session, rows, ids)
    return ids


async def _acreate(session: Async, admitted: Sequence[TaskRow]) -> list[TaskId]:
    if not isinstance(session, AsyncSession | AsyncConnection):
        raise TypeError(
            f"A {_kind(session)} is no AsyncSession or AsyncConnection. "
            "Pass the async session of your transaction; others go to create_task."
        )
    return await session.run_sync(create_rows, admitted)  # one greenlet for all that is to be said


@functools.cache
def _payload_limit() -> int:
    return load_settings().payload_limit


def admitted(new: NewTask) -> TaskRow:
    """Return the row that :func:`create_task` would insert.

    Raises:
        InvalidTaskError: it is refused.
    """
    spec: HandlerSpec | None
    match new.task:
        case str():
            spec = HANDLERS.get(new.task)
        case Handler():
            spec = new.task.spec
        case _:
            new, spec = translated(new)
    return admit(new, spec, _payload_limit())


def _admitted_many(tasks: Sequence[NewTask]) -> list[TaskRow]:
    rows = []
    for place, new in enumerate(tasks):
        try:
            rows.append(admitted(new))
        except InvalidTaskError as error:
            raise error.at(f"tasks[{place}]") from None
    return rows


def _connection(session: Sync) -> Connection:
    match session:
        case Session():
            return session.connection()
        case Connection():
            return session
        case _:
            raise TypeError(
                f"A {_kind(session)} is no Session or Connection. "
                "Pass the SQLAlchemy session of your transaction; async ones go to acreate_task."
            )


def _kind(session: object) -> str:
    """Name the kind; SQLAlchemy and psycopg have names in common."""
    kind = type(session)
    return f"{kind.__name__} of psycopg" if "psycopg" in kind.__module__ else kind.__name__
