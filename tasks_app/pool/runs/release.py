"""Release: RUNNING back to PENDING through no fault of the task. Nothing is charged.

A task whose cancellation was asked for meanwhile does not come back: it is CANCELLED.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.waiting_reason import WaitingReason
from tasks_app.domain.tasks.run import ClaimedTask, Fence
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.row_by_row import task_by_task
from tasks_app.pool.fragments.fences import fence_arrays, fenced
from tasks_app.pool.fragments.move_rows import AS_IT_WAS, SKIP_LOCKED, WAIT, leave
from tasks_app.pool.tables import NOW, PENDING, admits


def _held(source: str) -> str:
    return f"""
    SELECT {AS_IT_WAS},
        CASE WHEN p.cancel_requested_at IS NULL THEN '{State.PENDING}' ELSE '{State.CANCELLED}' END
            AS goes_to,
        {NOW} + CAST(:wait AS interval) AS back_at, p.failures, p.crashes, p.retry_level,
        NULL::jsonb AS result, NULL AS kind, NULL AS message, NULL AS traceback,
        NULL AS encrypted_message, NULL::bytea AS fingerprint,
        NULL::integer AS run_ms, '{Event.RELEASE}' AS event
    FROM {source}
    """


_PARK = text(f"""
    UPDATE {PENDING} SET due_at = least(due_at, CAST(:due_at AS timestamptz)),
        parked = :reason, parked_kind = :kind, parked_for = :subject
    WHERE id = :id AND state = '{State.PENDING}'
""")
_MAY = admits(Event.RELEASE)
_GROUP = leave(_held(fenced(_MAY, SKIP_LOCKED)))
_ONE = leave(_held(fenced(_MAY, WAIT)), waits=True)
_TOKEN = leave(
    _held(f"{PENDING} p WHERE p.lease_token = :token AND {_MAY} ORDER BY p.id {SKIP_LOCKED}")
)


def release(
    connection: Connection,
    fences: Sequence[Fence],
    *,
    wait: timedelta = timedelta(0),
    block: bool = False,
    left: set[int] | None = None,
    now: datetime | None = None,
) -> dict[int, State]:
    """Give claims back, due after ``wait``; return where each went.

    Unless ``block``, rows that somebody holds are left out, as are those whose fence is lost; and
    those that the database refuses, whose ids are added to ``left``.
    """

    def give_back(some: Sequence[Fence]) -> dict[int, State]:
        statement = (_ONE if block else _GROUP)()
        rows = connection.execute(statement, {**fence_arrays(some), "wait": wait, "now": now})
        return {row.id: State(row.goes_to) for row in rows}

    if block:
        return give_back(fences)
    return task_by_task(connection, fences, give_back, "release of tasks", left=left, now=now)


def release_parked(
    connection: Connection,
    task: ClaimedTask,
    reason: WaitingReason,
    wait: timedelta,
    *,
    now: datetime | None = None,
) -> State | None:
    """Give a claim back, parked for ``wait``: it stays due since when it was.

    It waits for the row. None: the fence is lost.
    """
    state = release(connection, [task.fence], wait=wait, block=True, now=now).get(task.task_id)
    if state is State.PENDING:
        values = {"id": task.task_id, "due_at": task.due_at, "reason": str(reason)}
        kind = {"kind": reason.kind.value, "subject": reason.subject}
        connection.execute(_PARK, {**values, **kind})
    return state


def release_token(connection: Connection, token: UUID, *, now: datetime | None = None) -> set[int]:
    """Give back whatever a claim took whose reply never came; return the ids."""
    values = {"token": token, "wait": timedelta(0), "now": now}
    return {row.id for row in connection.execute(_TOKEN(), values)}
