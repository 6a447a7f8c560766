"""Requeue: an operator returns a finished task; same id, same key, charges anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.errors import UniqueKeyTakenError
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.dispatch.set_aside import sweep
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.browse import failed_attempts
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tests.factory import claimed_task, count, ending, pending_task, pool_of_task, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def finished(connection: Connection, event: Event = Event.FAIL, **options) -> int:
    task = claimed_task(connection, pending_task(connection, now=NOON, **options), now=NOON)
    settle_one(connection, ending(task, event, cause=Cause("E", "no")), now=NOON)
    return task.task_id


@pytest.mark.parametrize("event", [Event.FAIL, Event.SUCCEED, Event.SKIP, Event.CANCEL])
def test_a_finished_task_comes_back_due_now_under_its_own_id(
    connection: Connection, event: Event
) -> None:
    task_id = finished(connection, event)

    assert requeue(connection, task_id, now=LATER) is Requeued.REQUEUED

    assert pool_of_task(connection, task_id) == "pending PENDING"
    row = row_of(connection, task_id)
    assert row.due_at == row.scan_at == LATER


@pytest.mark.parametrize("event", [Event.FAIL, Event.SUCCEED])
def test_the_attempts_go_on_and_the_charges_start_anew(
    connection: Connection, event: Event
) -> None:
    table = "task_error" if event is Event.FAIL else "task_completed"
    task_id = finished(connection, event, failures=2, crashes=1)
    connection.execute(text(f"UPDATE {table} SET retry_level = 3 WHERE id = :id"), {"id": task_id})
    before = row_of(connection, task_id, table)

    requeue(connection, task_id, now=LATER)

    row = row_of(connection, task_id)
    assert (row.failures, row.crashes, row.retry_level) == (0, 0, 0)
    assert row.attempt == before.attempt == 3
    assert row.idempotency_key == before.idempotency_key
    assert row.created_at == before.created_at == NOON
    assert claimed_task(connection, task_id, now=LATER).fence.attempt == 4


def test_what_the_task_is_does_not_change(connection: Connection) -> None:
    options = {
        "payload": {"a": 1},
        "queue": "q",
        "priority": 2,
        "biz_key": "b",
        "unique_key": "u",
        "max_attempts": 7,
        "retry": "5s",
        "timeout": 1,
        "hard_timeout": 2,
        "headers": {"h": 1},
    }
    task_id = finished(connection, **options)

    requeue(connection, task_id)

    row = row_of(connection, task_id)
    assert (row.payload, row.queue, row.priority, row.biz_key) == ({"a": 1}, "q", 2, "b")
    assert (row.unique_key, row.max_attempts, row.retry) == ("u", 7, "5s")
    assert (row.timeout_ms, row.hard_timeout_ms, row.headers) == (1000, 2000, {"h": 1})


def test_the_history_is_kept(connection: Connection) -> None:
    task_id = finished(connection)

    requeue(connection, task_id)

    assert [line.event for line in failed_attempts(connection, task_id)] == ["fail"]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_task_that_is_not_over_stays_as_it_is(connection: Connection, state: str) -> None:
    task_id = pending_task(connection)
    if state == "RUNNING":
        claimed_task(connection, task_id)
    before = row_of(connection, task_id)

    assert requeue(connection, task_id) is Requeued.STILL_PENDING
    assert row_of(connection, task_id) == before


def test_a_task_that_never_was_is_not_found(connection: Connection) -> None:
    assert requeue(connection, 10**15) is Requeued.NOT_FOUND


def test_a_second_requeue_finds_it_pending(connection: Connection) -> None:
    task_id = finished(connection)

    assert [requeue(connection, task_id) for _ in range(2)] == [
        Requeued.REQUEUED,
        Requeued.STILL_PENDING,
    ]


@pytest.mark.parametrize("event", [Event.FAIL, Event.SUCCEED])
def test_a_unique_key_taken_meanwhile_refuses_by_name_and_leaves_everything_as_it_was(
    connection: Connection, event: Event
) -> None:
    table = "task_error" if event is Event.FAIL else "task_completed"
    task_id = finished(connection, event, unique_key="k")
    holder = pending_task(connection, unique_key="k")
    before = row_of(connection, task_id, table)

    with pytest.raises(UniqueKeyTakenError, match=f"'k' of t is taken by task {holder}"):
        requeue(connection, task_id)

    assert row_of(connection, task_id, table) == before
    assert count(connection) == 2


def test_the_requeued_task_holds_its_unique_key_again(connection: Connection) -> None:
    task_id = finished(connection, unique_key="k")
    requeue(connection, task_id)

    again = pending_task(connection, unique_key="k")

    assert (again, again.created) == (task_id, False)


def test_a_wish_to_cancel_is_forgotten(connection: Connection) -> None:
    task = claimed_task(connection)
    cancel(connection, task.task_id)
    settle_one(connection, ending(task, Event.RETRY))

    requeue(connection, task.task_id)

    assert row_of(connection, task.task_id).cancel_requested_at is None


def test_a_task_that_was_skipped_because_it_was_disabled_is_enabled(
    connection: Connection,
) -> None:
    task_id = pending_task(connection, enabled=False)
    sweep(connection, [task_id])

    requeue(connection, task_id)

    assert row_of(connection, task_id).enabled


def test_an_operators_wish_outranks_a_date_that_has_passed(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON, expires_at=NOON)
    sweep(connection, [task_id], now=NOON)

    requeue(connection, task_id, now=LATER)

    assert row_of(connection, task_id).expires_at is None
    assert claimed_task(connection, task_id, now=LATER)


def test_a_date_that_has_not_passed_stays(connection: Connection) -> None:
    task_id = finished(connection, expires_at=LATER + timedelta(seconds=1))

    requeue(connection, task_id, now=LATER)

    assert row_of(connection, task_id).expires_at == LATER + timedelta(seconds=1)
