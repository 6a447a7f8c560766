"""What operators call, on a connection or session of their own; nothing here commits."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tasks_app.domain.explain.explanation import Explanation, explain
from tasks_app.domain.task import Task
from tasks_app.pool import browse
from tasks_app.pool.cancel import Cancelled, CancelledMany, cancel, cancel_many
from tasks_app.pool.explain import read_facts
from tasks_app.pool.requeue import Requeued, requeue
from tasks_app.runtime.callers import Sync, connection_of

if TYPE_CHECKING:
    from tasks_app.domain.settings import Settings

LATE_SCANS, PATIENCE = 5, timedelta(minutes=1)
"""What is due for a while is late. Without so many scans, and that while on top, nobody scans."""


def get_task(session: Sync, task_id: int) -> Task | None:
    """Return the task from whichever pool it lies in, or None."""
    return browse.get(connection_of(session), task_id)


def explain_task(session: Sync, task_id: int, *, settings: Settings | None = None) -> Explanation:
    """Say why a task does not run, or what became of it. Reads only, and never much.

    ``settings`` are those of the environment, unless given: they say how long a worker that is
    silent counts as living.
    """
    if settings is None:
        from tasks_app.domain.settings import load_settings  # noqa: PLC0415  it costs 50 ms

        settings = load_settings()
    facts = read_facts(
        connection_of(session),
        task_id,
        lease=settings.lease,
        late_after=LATE_SCANS * settings.scan_interval + PATIENCE,
    )
    return explain(facts)


def cancel_task(session: Sync, task_id: int) -> Cancelled:
    """Cancel a pending task at once; tell a running one, which will then not run again."""
    return cancel(connection_of(session), task_id)


def cancel_tasks(
    session: Sync, *, name: str | None = None, biz_key: str | None = None
) -> CancelledMany:
    """Cancel all pending and running tasks with this name and biz_key.

    Raises:
        ValueError: neither is given, which would cancel everything.
    """
    if name is None and biz_key is None:
        raise ValueError("cancel_tasks needs name= or biz_key=; it never cancels everything.")
    return cancel_many(connection_of(session), name=name, biz_key=biz_key)


def requeue_task(session: Sync, task_id: int) -> Requeued:
    """Return a finished task to the pending pool: same id, charges from 0.

    Raises:
        UniqueKeyTakenError: another pending task has its name and unique_key.
    """
    return requeue(connection_of(session), task_id)
