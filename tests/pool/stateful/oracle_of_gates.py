"""Who passes an order key, who is held and who is woken: in the plainest Python."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from tasks_app.domain.tasks.states import State
from tests.pool.stateful.oracle_of_claims import Worker, claimed
from tests.pool.stateful.world import Expected, Row, View

ASIDE = timedelta(days=1)


def is_ready(row: Row, now: datetime) -> bool:
    late = row.expires_at is not None and row.expires_at <= now
    return row.state is State.PENDING and row.enabled and not late and row.due_at <= now


def head_of(view: View, key: str, now: datetime) -> Row | None:
    """Who may run next, if nobody runs: the first that can, unless one before it is in the way."""
    for row in view.everything():
        if row.order_key != key:
            continue
        if row.state is State.FAILED and not row.order_skips:
            return None
        begun = row.but(due_at=now) if row.attempt and not row.order_skips else row
        if is_ready(begun, now):
            return row
    return None


def runs(view: View, key: str) -> bool:
    return any(row.order_key == key and row.state is State.RUNNING for row in view.rows())


def claim(view: View, ids: Sequence[int], worker: Worker, token: UUID, lease, now) -> Expected:
    rows = [row for row in view.rows() if row.id in ids and row.order_key is not None]
    wishes = [
        row
        for row in rows
        if is_ready(row, now)
        and row.name in worker.handlers
        and (row.parked is None or row.scan_at <= now)
        and not view.stands_still(row.queue)
    ]
    keys = sorted({row.order_key for row in wishes})
    for key in keys:
        view.wait_for(f"order {key}")
    heads = {key: None if runs(view, key) else head_of(view, key, now) for key in keys}
    passing = [row for row in wishes if row == heads[row.order_key] and view.free(row.id)]
    taken = [row for row in passing if not worker.alone(row)] or passing[:1]
    held = [row for row in wishes if row != heads[row.order_key] and view.free(row.id)]
    after = {row.id: claimed(row, worker, token, lease, now) for row in taken}
    aside = {row.id: row.but(scan_at=now + ASIDE, parked=f"order {row.order_key}") for row in held}
    locked = {row.id for row in passing} | {f"order {key}" for key in keys}
    in_line = sorted(passing, key=lambda row: (row.priority, row.id))
    answer = [after[row.id] for row in in_line if row.id in after]
    return Expected(answer, after | aside, holds=locked)


def wake(view: View, key: str, now: datetime) -> Expected:
    view.wait_for(f"order {key}")
    head = None if runs(view, key) else head_of(view, key, now)
    expected = Expected([], holds={f"order {key}"})
    if head is not None and head.parked == f"order {key}" and view.free(head.id):
        if is_ready(head, now) and not view.stands_still(head.queue):
            expected.answer = [head.id]
        expected.changes[head.id] = head.but(scan_at=max(now, head.due_at), parked=None)
    return expected


def next_of(view: View, gone: Sequence[Row], now: datetime) -> dict[int, Row]:
    """Who waits behind those that were cancelled: the first of each key is looked at again."""
    freed: dict[int, Row] = {}
    for key in {row.order_key for row in gone if row.order_key}:
        behind = [
            row
            for row in view.rows()
            if row.parked == f"order {key}" and row not in gone and view.free(row.id)
        ]
        freed |= {row.id: row.but(scan_at=max(now, row.due_at), parked=None) for row in behind[:1]}
    return freed


def unblock(view: View, task_id: int) -> Expected:
    row = view.get(task_id)
    if row is None or row.state is not State.FAILED or row.order_key is None or row.order_skips:
        return Expected(answer=False)
    view.wait_for(task_id)
    view.wait_for(f"order {row.order_key}")
    after = row.but(order_skips=True)
    return Expected(answer=True, changes={task_id: after}, holds={f"order {row.order_key}"})
