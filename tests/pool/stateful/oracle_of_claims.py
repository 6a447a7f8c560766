"""What a claim must take: said in the plainest Python; nothing is taken from SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from tasks_app.domain.tasks.states import State
from tests.pool.stateful.world import Expected, Row, View


class Worker(NamedTuple):
    """A child, and its handlers: how often each is tried, and whether it is tried again at all."""

    owner: str
    handlers: dict[str, tuple[int, bool]]

    def once(self, row: Row) -> bool:
        return self.handlers[row.name][1] if row.at_most_once is None else row.at_most_once

    def alone(self, row: Row) -> bool:
        return row.crashes > 0 or self.once(row)


def can_run(view: View, row: Row, worker: Worker, now: datetime) -> bool:
    return (
        row.state is State.PENDING
        and row.order_key is None
        and row.name in worker.handlers
        and row.enabled
        and row.due_at <= now
        and (row.expires_at is None or row.expires_at > now)
        and not view.stands_still(row.queue)
        and view.free(row.id)
    )


def claimed(row: Row, worker: Worker, token: UUID, lease: timedelta, now: datetime) -> Row:
    return row.but(
        state=State.RUNNING,
        attempt=row.attempt + 1,
        token=token,
        owner=worker.owner,
        lease_until=now + lease,
        started_at=now,
        parked=None,
        max_attempts=row.max_attempts or worker.handlers[row.name][0],
        at_most_once=worker.once(row),
    )


def claim(view: View, ids: Sequence[int], worker: Worker, token, lease, now) -> Expected:
    rows = [view.pending(task_id) for task_id in sorted(set(ids))]
    there = [row for row in rows if row and can_run(view, row, worker, now)]
    taken = [row for row in there if not worker.alone(row)] or there[:1]
    after = {row.id: claimed(row, worker, token, lease, now) for row in taken}
    answer = [after[task_id] for task_id in dict.fromkeys(ids) if task_id in after]
    return Expected(answer, after, holds={row.id for row in there})


def claim_next(
    view: View, queues: Sequence[str], most: int, worker: Worker, token, lease, now, *, lonely: bool
) -> Expected:
    lanes: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(view.rows(), key=lambda row: (row.scan_at, row.id)):
        fits = row.queue in queues and can_run(view, row, worker, now) and row.scan_at <= now
        if fits and (lonely or not worker.alone(row)):
            lanes.setdefault((row.queue, row.priority), []).append(row)
    locked = [row for lane in lanes.values() for row in lane[:most]]
    line = sorted(locked, key=lambda row: (row.priority, row.scan_at, row.id))[:most]
    taken = line[:1] if line and worker.alone(line[0]) else [r for r in line if not worker.alone(r)]
    after = {row.id: claimed(row, worker, token, lease, now) for row in taken}
    answer = sorted(after.values(), key=lambda row: (row.priority, row.due_at, row.id))
    return Expected(answer, after, holds={row.id for row in locked})
