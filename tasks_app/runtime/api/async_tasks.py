"""The verbs for one task, for async transactions; see those of the same names without the ``a``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tasks_app.domain.explain.explanation import Explanation
from tasks_app.domain.tasks.names import check_id
from tasks_app.domain.tasks.records import Task
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.cancel import Cancelled
from tasks_app.pool.tasks.requeue import Requeued
from tasks_app.runtime.api.tasks import cancelled, explained, requeued
from tasks_app.runtime.db.connections import Async, AsyncRaw, on_async_connection

if TYPE_CHECKING:
    from tasks_app.domain.config.settings import Settings


async def aget_task(session: Async | AsyncRaw, task_id: int) -> Task | None:
    """Return the task from whichever pool it lies in, or None."""
    verb = partial(browse.get, task_id=check_id(task_id))
    return await on_async_connection(session, verb)


async def aexplain_task(
    session: Async | AsyncRaw, task_id: int, *, settings: Settings | None = None
) -> Explanation:
    """Say why a task does not run, or what became of it. Reads only, and never much."""
    verb = partial(explained, task_id=check_id(task_id), settings=settings)
    return await on_async_connection(session, verb)


async def acancel_task(session: Async | AsyncRaw, task_id: int, *, by: str = "") -> Cancelled:
    """Cancel a pending task at once; tell a running one, which will then not run again."""
    verb = partial(cancelled, task_id=check_id(task_id), by=by)
    return await on_async_connection(session, verb)


async def arequeue_task(session: Async | AsyncRaw, task_id: int, *, by: str = "") -> Requeued:
    """Return a finished task to the pending pool: same id, charges from 0.

    Raises:
        UniqueKeyTakenError: another pending task has its name and unique_key.
    """
    verb = partial(requeued, task_id=check_id(task_id), by=by)
    return await on_async_connection(session, verb)
