"""What the verbs for tasks that wait must answer and write: in the plainest Python."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tasks_app.domain.operations import Amendment, BulkAction
from tasks_app.domain.tasks.states import State
from tests.pool.stateful.oracle_of_gates import next_of
from tests.pool.stateful.world import Expected, Row, View

FAR = datetime(9899, 1, 1, tzinfo=UTC)


def amend(
    view: View, action: BulkAction, task_id: int, change: Amendment, now: datetime
) -> Expected:
    row = view.pending(task_id)
    changes = None if row is None or row.state is State.RUNNING else _of(row, action, change, now)
    if row is None or changes is None:
        return Expected([])
    view.wait_for(task_id)
    leaves = action in {BulkAction.HOLD, BulkAction.RESCHEDULE, BulkAction.DISABLE}
    behind = next_of(view, [row], now) if leaves else {}
    return Expected([task_id], {**behind, task_id: row.but(**changes)})


def _of(row: Row, action: BulkAction, change: Amendment, now: datetime) -> dict[str, Any] | None:
    """What changes in it; None: it is so already."""
    at, back = max(now, change.at or now), max(now, row.held_due_at or now)
    far = max(row.due_at, row.expires_at) if row.expires_at else FAR
    look = {"scan_at": max(now, row.due_at), "parked": None}
    moved = {"due_at": at, "scan_at": at}
    sooner = {"priority": change.to_priority, "scan_at": max(now, row.scan_at or now)}
    free = {"due_at": back, "scan_at": back, "held_due_at": None, "parked": None}
    gone = {"held_due_at": row.due_at, "due_at": far, "scan_at": far, "parked": None}
    whether: dict[BulkAction, tuple[bool, dict[str, Any]]] = {
        BulkAction.RUN_NOW: (row.due_at > now, {**moved, "held_due_at": None, "parked": None}),
        BulkAction.RESCHEDULE: (
            True,
            {"parked": None, **({"held_due_at": at} if row.held_due_at else moved)},
        ),
        BulkAction.REPRIORITISE: (row.priority != change.to_priority, sooner),
        BulkAction.MOVE: (row.queue != change.to_queue, {"queue": change.to_queue, **look}),
        BulkAction.HOLD: (row.held_due_at is None, gone),
        BulkAction.RELEASE: (row.held_due_at is not None, free),
        BulkAction.ENABLE: (not row.enabled, {"enabled": True, **look}),
        BulkAction.DISABLE: (row.enabled, {"enabled": False, **look}),
    }
    applies, changes = whether[action]
    return changes if applies else None
