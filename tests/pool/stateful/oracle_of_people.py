"""What the verbs of producers, operators and the scan must answer and write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from tasks_app.domain.flow_control.limits import WaitingReason
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.tasks.cancel import Cancelled, CancelledMany
from tasks_app.pool.tasks.requeue import Requeued
from tests.pool.stateful.oracle_of_gates import next_of
from tests.pool.stateful.oracle_of_runs import over
from tests.pool.stateful.world import Changes, Expected, Row, View

Created = list[tuple[TaskRow, int, bool]]
"""What was asked for, the id that came back, and whether it is said to be new."""


def new_row(row: TaskRow, task_id: int, now: datetime) -> Row:
    due = (row.terms.run_at or now) + row.terms.delay
    return Row(
        id=task_id,
        name=row.name,
        queue=row.terms.queue,
        priority=row.terms.priority,
        biz_key=row.biz_key,
        unique_key=row.unique_key,
        payload=json.loads(row.payload),
        enabled=row.terms.enabled,
        max_attempts=row.terms.max_attempts,
        due_at=due,
        scan_at=due,
        expires_at=row.terms.expires_at,
        created_at=now,
        retry_level=row.terms.retry_level,
        order_key=row.order_key,
        order_skips=row.terms.order_skips,
    )


def create(view: View, created: Created, now: datetime) -> Expected:
    """The ids are the database's; the first of a unique_key makes the task, the others get it."""
    expected = Expected([])
    taken: dict[tuple[str, str], int] = {}
    for row, task_id, _ in created:
        after = new_row(row, task_id, now)
        holder = view.holder_of(after.key)
        held = taken.get(after.key, holder and holder.id) if after.key else None
        if held is not None:
            expected.answer.append((held, False))
            continue
        if after.key:
            taken[after.key] = task_id
        expected.changes[task_id] = after
        expected.answer.append((task_id, True))
    return expected


def told(row: Row, now: datetime) -> Row:
    return row.but(cancel_requested_at=row.cancel_requested_at or now)


def cancelled(row: Row, now: datetime) -> Row:
    return over(row, State.CANCELLED) if row.state is State.PENDING else told(row, now)


def all_cancelled(view: View, rows: Sequence[Row], now: datetime) -> Changes:
    gone = [row for row in rows if row.state is State.PENDING]
    return {**next_of(view, gone, now), **{row.id: cancelled(row, now) for row in rows}}


def cancel(view: View, task_id: int, now: datetime) -> Expected:
    row = view.pending(task_id)
    if row is None:
        return Expected(Cancelled.ALREADY_OVER if view.get(task_id) else Cancelled.NOT_FOUND)
    view.wait_for(task_id)
    runs = row.state is State.RUNNING
    answer = Cancelled.REQUESTED if runs else Cancelled.CANCELLED
    return Expected(answer, all_cancelled(view, [row], now))


def cancel_many(view: View, name: str | None, biz_key: str | None, now: datetime) -> Expected:
    rows = [
        row for row in view.rows() if name in (None, row.name) and biz_key in (None, row.biz_key)
    ]
    for row in rows:
        view.wait_for(row.id)
    running = sum(row.state is State.RUNNING for row in rows)
    answer = CancelledMany(len(rows) - running, running)
    return Expected(answer, all_cancelled(view, rows, now))


def requeue(view: View, task_id: int, now: datetime) -> Expected:
    """Answers the id of who has the unique_key, if somebody has it."""
    row = view.get(task_id)
    if row is None:
        return Expected(Requeued.NOT_FOUND)
    if not row.is_over:
        return Expected(Requeued.STILL_PENDING)
    view.wait_for(task_id)
    after = row.but(
        state=State.PENDING,
        failures=0,
        crashes=0,
        retry_level=0,
        due_at=now,
        scan_at=now,
        owner=None,
        started_at=None,
        cancel_requested_at=None,
        enabled=True,
        expires_at=row.expires_at if row.expires_at and row.expires_at > now else None,
        error=None,
        result=None,
    )
    holder = view.holder_of(after.key)
    if holder is not None:
        return Expected(holder.id, holds={task_id})
    return Expected(Requeued.REQUEUED, {task_id: after})


def pause(view: View, queue: str, reason: str) -> Expected:
    view.wait_for(queue)
    if view.get(queue) is not None:
        return Expected(answer=False)
    return Expected(answer=True, changes={queue: reason})


def resume(view: View, queues: Sequence[str]) -> Expected:
    there = [queue for queue in queues if view.get(queue) is not None]
    for queue in there:
        view.wait_for(queue)
    return Expected(set(there), dict.fromkeys(there))


def edit(view: View, pool: Pool, task_id: int, payload: dict) -> Expected:
    row = view.get(task_id)
    if row is None or row.state is not {"pending": State.PENDING, "error": State.FAILED}[pool]:
        return Expected(answer=False)
    view.wait_for(task_id)
    return Expected(answer=True, changes={task_id: row.but(payload=payload)})


def cancel_these(view: View, ids: Sequence[int], now: datetime) -> Expected:
    rows = [row for row in map(view.pending, sorted(set(ids))) if row]
    for row in rows:
        view.wait_for(row.id)
    running = sum(row.state is State.RUNNING for row in rows)
    answer = CancelledMany(len(rows) - running, running)
    return Expected(answer, all_cancelled(view, rows, now))


def park(
    view: View, ids: Sequence[int], reason: WaitingReason, wait: timedelta, now: datetime
) -> Expected:
    rows = [view.pending(task_id) for task_id in ids]
    return Expected(
        None,
        {
            row.id: row.but(scan_at=max(now, row.due_at) + wait, parked=str(reason))
            for row in rows
            if row and row.state is State.PENDING and row.scan_at <= now and view.free(row.id)
        },
    )


def sweep(view: View, ids: Sequence[int], now: datetime) -> Expected:
    expected = Expected({})
    for row in map(view.pending, ids):
        if not row or row.state is not State.PENDING or row.due_at > now or not view.free(row.id):
            continue
        if not row.enabled:
            why = "disabled: The task was disabled when it became due."
            after = over(row, State.SKIPPED, why)
        elif row.expires_at and row.expires_at <= now:
            why = "expired: The task became due, or was to be tried again, after its expires_at."
            after = over(row, State.EXPIRED, why)
        else:
            continue
        expected.changes[row.id], expected.answer[row.id] = after, after.state
    return expected


def runs(view: View, queue: str) -> bool:
    return view.get(queue) is None and view.get("*") is None


def due(view: View, queue: str, most: int, now: datetime) -> list[int]:
    """What a scan of a queue finds, in the order in which it shall run."""
    rows = [
        row
        for row in view.rows()
        if row.queue == queue and row.state is State.PENDING and row.scan_at <= now
    ]
    return [r.id for r in sorted(rows, key=lambda row: (row.priority, row.scan_at, row.id))][:most]
