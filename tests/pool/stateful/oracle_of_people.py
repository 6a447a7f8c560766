"""What the verbs of producers, operators and the scan must answer and write."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import WaitingReason
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.domain.tasks.run import ClaimedTask, Fence
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.tasks.cancel import Cancelled, CancelledMany
from tasks_app.pool.tasks.requeue import Requeued
from tests.pool.stateful.oracle import next_of, over
from tests.pool.stateful.world import Changes, Expected, Row, Seats, View

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


NOBODYS = 10**15
"""An id of a forged message."""
FORGED = ClaimedTask(
    Fence(NOBODYS, 1, UUID(int=1)),
    *("a", "q1", None, "{}", None, 0, 0, 0, 3, False, None, None, None, "", 0.0, 0.0, False),
)
Pick = tuple[str, int]
"""Of which kind, and its number, from the newest on."""
one = st.tuples(st.sampled_from(("current", "current", "late", "any")), st.integers(0, 9))
some = st.lists(one, min_size=1, max_size=5)


class Picks(Seats):
    """Keeps every id and every run that ever was, also of transactions that were rolled back."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = [NOBODYS]
        self.runs = [FORGED]

    def id_of(self, pick: Pick, *, over: bool = False) -> int:
        """Of what is committed, and is over or is not; or any."""
        kind, number = pick
        rows = [row for row in self.world.things.values() if isinstance(row, Row)]
        such = [row.id for row in rows if row.is_over is over]
        there = such if kind != "any" and such else self.ids
        return there[-1 - number % len(there)]

    def run_of(self, pick: Pick) -> ClaimedTask:
        """Of those that hold their task; or whose task is another run's by now; or any."""
        kind, number = pick
        running = self._running()
        fences = {(row.id, row.attempt, row.token) for row in running}
        ids = {row.id for row in running}
        such = {
            "current": [run for run in self.runs if run.fence in fences],
            "late": [r for r in self.runs if r.task_id in ids and r.fence not in fences],
        }
        there = such.get(kind) or self.runs
        return there[-1 - number % len(there)]

    def ids_of(self, picks: list[Pick]) -> list[int]:
        return [self.id_of(pick) for pick in picks]

    def runs_of(self, picks: list[Pick]) -> list[ClaimedTask]:
        return list({run.fence: run for run in map(self.run_of, picks)}.values())

    def _running(self) -> list[Row]:
        worlds = [self.world.things, *(other.changes for other in self.world.open.values())]
        rows = [row for things in worlds for row in things.values()]
        return [row for row in rows if isinstance(row, Row) and row.token]


_OF_PENDING = {"scan_at", "parked", "lease_token", "lease_until", "held_due_at"}
_OF_THE_OTHERS = {"error", "result"}
_NAMES = ["lease_token" if f.name == "token" else f.name for f in fields(Row)]


def _select(table: str, absent: set[str]) -> str:
    """A cast gives each NULL its type."""
    types = {"lease_token": "uuid", "result": "jsonb", "error": "text", "parked": "text"}
    columns = (
        f"CAST(NULL AS {types.get(name, 'timestamptz')}) AS {name}" if name in absent else name
        for name in _NAMES
    )
    return f"SELECT {', '.join(columns)}, idempotency_key FROM {table}"


_ROWS = text(
    f"{_select('task_pending', _OF_THE_OTHERS)} UNION ALL "
    f"{_select('task_completed', _OF_PENDING)} UNION ALL {_select('task_error', _OF_PENDING)}"
)
_PAUSES = text("SELECT queue, reason FROM task_queue_pause")
_NOTES = text("""
    SELECT event, task_id, attempt FROM task_attempt
    UNION ALL SELECT 'effect', task_id, attempt FROM stateful_effect
""")


def read_rows(connection: Connection) -> list[tuple[Row, Any]]:
    read = connection.execute(_ROWS).all()
    return [(_row(values), key) for *values, key in read]


def _row(values: Any) -> Row:
    row = Row(*values)
    return row.but(state=State(row.state))


def read_pauses(connection: Connection) -> Changes:
    return dict(connection.execute(_PAUSES).all())


def read_notes(connection: Connection) -> Counter:
    return Counter(map(tuple, connection.execute(_NOTES)))
