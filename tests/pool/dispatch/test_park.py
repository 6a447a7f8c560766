"""Park: rows that cannot run now stand aside for a short time, with a visible reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.dispatch.set_aside import park_tasks
from tasks_app.pool.tasks.browse import get
from tests.factory import claimed_task, pending_task, row_of, unknown

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)
WAIT = timedelta(seconds=15)


def test_a_parked_row_is_hidden_from_the_scan_for_its_time(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)

    park_tasks(connection, [task_id], unknown("new.name"), WAIT, now=LATER)

    assert find_due(connection, {"default": 9}, now=LATER + WAIT - timedelta(microseconds=1)) == []
    assert find_due(connection, {"default": 9}, now=LATER + WAIT)[0].ids == [task_id]


def test_a_parked_row_says_why(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)

    park_tasks(connection, [task_id], unknown("new.name"), WAIT, now=LATER)

    task = get(connection, task_id)
    assert task is not None
    assert task.parked == "no live worker of this queue has a handler named new.name"


def test_parking_burns_nothing_and_keeps_due_at(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    before = row_of(connection, task_id)._mapping

    park_tasks(connection, [task_id], unknown("paused"), WAIT, now=LATER)

    after = row_of(connection, task_id)._mapping
    assert {k for k in before if before[k] != after[k]} == {
        *("scan_at", "parked", "parked_kind", "parked_for")
    }
    assert after["due_at"] == NOON


def test_a_running_row_is_not_parked(connection: Connection) -> None:
    task = claimed_task(connection, now=NOON)
    before = row_of(connection, task.task_id)

    park_tasks(connection, [task.task_id], unknown("late"), WAIT, now=LATER)

    assert row_of(connection, task.task_id) == before


def test_a_row_that_is_not_due_for_the_scan_stays_where_it_is(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=LATER + timedelta(microseconds=1))
    before = row_of(connection, task_id)

    park_tasks(connection, [task_id], unknown("early"), WAIT, now=LATER)

    assert row_of(connection, task_id) == before


def test_a_parked_row_is_not_pushed_further_by_a_second_message(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    park_tasks(connection, [task_id], unknown("first"), WAIT, now=LATER)

    park_tasks(connection, [task_id], unknown("second"), WAIT, now=LATER + timedelta(seconds=1))

    row = row_of(connection, task_id)
    assert (row.parked_for, row.scan_at) == ("first", LATER + WAIT)


def test_only_the_named_rows_are_parked(connection: Connection) -> None:
    ids = [pending_task(connection, run_at=NOON) for _ in range(2)]

    park_tasks(connection, [ids[0], ids[0], 10**15], unknown("x"), WAIT, now=LATER)

    assert [row_of(connection, i).parked_for for i in ids] == ["x", None]
