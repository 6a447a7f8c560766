"""Sweep: due rows that must not run leave the pool: disabled SKIPPED, late EXPIRED."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.dispatch.set_aside import sweep
from tasks_app.pool.runs.settle import settle_one
from tests.factory import claimed_task, count, ending, pending_task, pool_of_task, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE = NOON - timedelta(microseconds=1)


def test_a_disabled_task_is_skipped_when_it_is_due_and_not_before(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON, enabled=False)

    assert sweep(connection, [task_id], now=BEFORE) == {}
    assert sweep(connection, [task_id], now=NOON) == {task_id: State.SKIPPED}

    row = row_of(connection, task_id, "task_completed")
    assert row.error == "disabled: The task was disabled when it became due."
    assert row.finished_at == NOON


def test_a_task_expires_at_the_instant_that_it_names(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON - timedelta(hours=1), expires_at=NOON)

    assert sweep(connection, [task_id], now=BEFORE) == {}
    assert sweep(connection, [task_id], now=NOON) == {task_id: State.EXPIRED}
    assert row_of(connection, task_id, "task_completed").error.startswith("expired: ")


def test_a_task_that_expired_is_not_swept_before_it_is_due(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON, expires_at=NOON - timedelta(hours=1))

    assert sweep(connection, [task_id], now=BEFORE) == {}
    assert sweep(connection, [task_id], now=NOON) == {task_id: State.EXPIRED}


def test_a_task_that_is_both_disabled_and_late_was_disabled(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON, enabled=False, expires_at=BEFORE)

    assert sweep(connection, [task_id], now=NOON) == {task_id: State.SKIPPED}


def test_a_running_task_is_never_expired(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON, expires_at=NOON + timedelta(seconds=1))
    claimed_task(connection, task_id, now=NOON)

    assert sweep(connection, [task_id], now=NOON + timedelta(hours=1)) == {}
    assert pool_of_task(connection, task_id) == "pending RUNNING"


def test_expiry_is_judged_again_at_a_retry(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON, expires_at=NOON + timedelta(seconds=3))
    task = claimed_task(connection, task_id, now=NOON)
    settle_one(connection, ending(task, Event.RETRY, wait=timedelta(seconds=5)), now=NOON)

    assert sweep(connection, [task_id], now=NOON + timedelta(seconds=5)) == {task_id: State.EXPIRED}


def test_a_task_that_may_run_stays(connection: Connection) -> None:
    plain = pending_task(connection, now=NOON)
    in_time = pending_task(connection, now=NOON, expires_at=NOON + timedelta(microseconds=1))

    assert sweep(connection, [plain, in_time], now=NOON) == {}


def test_only_the_named_rows_are_swept(connection: Connection) -> None:
    named, other = (pending_task(connection, now=NOON, enabled=False) for _ in range(2))

    assert sweep(connection, [named, 10**15], now=NOON) == {named: State.SKIPPED}
    assert pool_of_task(connection, other) == "pending PENDING"
    assert sweep(connection, [], now=NOON) == {}


def test_sweeping_charges_nothing_and_leaves_no_history(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON, enabled=False)

    sweep(connection, [task_id], now=NOON)

    row = row_of(connection, task_id, "task_completed")
    assert (row.failures, row.crashes, row.attempt) == (0, 0, 0)
    assert count(connection, "task_attempt") == 0
