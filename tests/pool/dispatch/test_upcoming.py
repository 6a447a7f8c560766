"""Upcoming: what becomes due next, and in how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from tasks_app.pool.dispatch.scan import find_upcoming
from tasks_app.pool.dispatch.set_aside import park_tasks
from tests.factory import claimed_task, pending_task, unknown

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
QUEUES = ["default", "mail"]


def soon(connection: Connection, within: timedelta = SECOND) -> float | None:
    return next(
        (task.due_in_s for task in find_upcoming(connection, QUEUES, within, now=NOON)), None
    )


def test_the_nearest_row_of_all_queues_and_priorities_counts(connection: Connection) -> None:
    pending_task(connection, run_at=NOON + 0.9 * SECOND, priority=0)
    pending_task(connection, run_at=NOON + 0.3 * SECOND, priority=9, queue="mail")
    pending_task(connection, run_at=NOON + 0.1 * SECOND, queue="theirs")

    assert soon(connection) == pytest.approx(0.3)


def test_rows_that_are_due_or_far_away_or_run_do_not_count(connection: Connection) -> None:
    pending_task(connection, run_at=NOON)
    pending_task(connection, run_at=NOON + 1.001 * SECOND)
    claimed_task(connection, pending_task(connection, run_at=NOON - SECOND), now=NOON)

    assert soon(connection) is None
    assert soon(connection, 2 * SECOND) == pytest.approx(1.001)


def test_what_became_due_since_the_last_look_counts(connection: Connection) -> None:
    pending_task(connection, run_at=NOON - SECOND)
    pending_task(connection, run_at=NOON - SECOND / 2)

    found = find_upcoming(connection, QUEUES, SECOND, since=0.9 * SECOND, now=NOON)

    assert [task.due_in_s for task in found] == [-0.5]


def test_nobody_wakes_up_for_a_parked_row(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    park_tasks(connection, [task_id], unknown("nobody knows it"), 0.5 * SECOND, now=NOON)

    assert soon(connection) is None


def test_the_nearest_come_first_whatever_their_queue_and_priority(connection: Connection) -> None:
    def made(tenths: int, priority: int, queue: str) -> int:
        due = NOON + tenths * SECOND / 10
        return pending_task(connection, run_at=due, priority=priority, queue=queue)

    ids = [made(1, 9, "mail"), made(2, 0, "default"), made(3, 5, "mail"), made(4, 0, "mail")]

    found = find_upcoming(connection, QUEUES, SECOND, most=3, now=NOON)

    assert [(task.id, task.queue) for task in found] == list(
        zip(ids, ["mail", "default", "mail"], strict=False)
    )
    assert [task.due_in_s for task in found] == pytest.approx([0.1, 0.2, 0.3])
