"""Cancel: a pending task moves at once, a running one is told, a finished one stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import Cancelled, CancelledMany, cancel, cancel_many
from tests.factory import claimed_task, count, ending, pending_task, pool_of_task, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_pending_task_is_cancelled_at_once(connection: Connection) -> None:
    task_id = pending_task(connection, failures=1)

    assert cancel(connection, task_id, now=NOON) is Cancelled.CANCELLED

    row = row_of(connection, task_id, "task_completed")
    assert (row.state, row.finished_at, row.failures) == ("CANCELLED", NOON, 1)
    assert pool_of_task(connection, task_id) == "completed CANCELLED"


def test_a_task_of_the_future_is_cancelled_and_keeps_the_time_at_which_it_was_due(
    connection: Connection,
) -> None:
    task_id = pending_task(connection, run_at=NOON + timedelta(days=9))

    cancel(connection, task_id, now=NOON)

    row = row_of(connection, task_id, "task_completed")
    assert row.due_at == NOON + timedelta(days=9)


def test_a_running_task_is_told_and_goes_on(connection: Connection) -> None:
    task = claimed_task(connection)

    assert cancel(connection, task.task_id, now=NOON) is Cancelled.REQUESTED

    row = row_of(connection, task.task_id)
    assert (row.state, row.cancel_requested_at) == ("RUNNING", NOON)
    assert row.lease_token == task.fence.token


def test_the_first_wish_is_the_one_that_is_remembered(connection: Connection) -> None:
    task = claimed_task(connection)
    cancel(connection, task.task_id, now=NOON)

    assert cancel(connection, task.task_id, now=NOON + timedelta(1)) is Cancelled.REQUESTED
    assert row_of(connection, task.task_id).cancel_requested_at == NOON


@pytest.mark.parametrize("event", [Event.SUCCEED, Event.FAIL, Event.CANCEL])
def test_a_finished_task_stays_what_it_is(connection: Connection, event: Event) -> None:
    task = claimed_task(connection)
    settle_one(connection, ending(task, event))
    before = pool_of_task(connection, task.task_id)

    assert cancel(connection, task.task_id) is Cancelled.ALREADY_OVER
    assert pool_of_task(connection, task.task_id) == before


def test_a_task_that_never_was_is_not_found(connection: Connection) -> None:
    assert cancel(connection, 10**15) is Cancelled.NOT_FOUND


def test_a_cancelled_task_leaves_no_line_in_the_history(connection: Connection) -> None:
    cancel(connection, pending_task(connection))

    assert count(connection, "task_attempt") == 0


def test_a_cancelled_tasks_unique_key_is_free_again(connection: Connection) -> None:
    cancel(connection, pending_task(connection, unique_key="k"))

    assert pending_task(connection, unique_key="k").created


def test_many_are_cancelled_by_name_and_biz_key(connection: Connection) -> None:
    hit = pending_task(connection, "a", biz_key="order:1")
    running = claimed_task(connection, name="a", biz_key="order:1")
    other_name = pending_task(connection, "b", biz_key="order:1")
    other_key = pending_task(connection, "a", biz_key="order:2")

    done = cancel_many(connection, name="a", biz_key="order:1", now=NOON)

    assert done == CancelledMany(cancelled=1, requested=1)
    assert pool_of_task(connection, hit) == "completed CANCELLED"
    assert row_of(connection, running.task_id).cancel_requested_at == NOON
    assert pool_of_task(connection, other_name) == "pending PENDING"
    assert pool_of_task(connection, other_key) == "pending PENDING"


@pytest.mark.parametrize(
    ("which", "number"),
    [
        ({"name": "a", "biz_key": None}, 2),
        ({"name": None, "biz_key": "x"}, 2),
        ({"name": "a", "biz_key": "nobody"}, 0),
        ({"name": None, "biz_key": None}, 3),
    ],
)
def test_none_matches_any(connection: Connection, which, number: int) -> None:
    for name, biz_key in (("a", "x"), ("a", "y"), ("b", "x")):
        pending_task(connection, name, biz_key=biz_key)

    assert cancel_many(connection, **which).cancelled == number
