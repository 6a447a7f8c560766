"""Rescue: claims whose worker is gone come back, bounded, spread, and never for at_most_once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import State
from tasks_app.pool.runs.leases import release, rescue_claims, rescue_expired
from tasks_app.pool.tasks.browse import failed_attempts
from tasks_app.pool.tasks.cancel import cancel
from tests.factory import LEASE, claimed_task, count, pending_task, pool_of_task, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OVER = NOON + LEASE + timedelta(microseconds=1)


def by_lease(connection: Connection, *tasks, now=OVER) -> dict[int, State]:
    return rescue_expired(connection, lease=LEASE, max_crashes=5, now=now)


def by_claim(connection: Connection, *tasks, now=OVER) -> dict[int, State]:
    fences = [task.fence for task in tasks]
    return rescue_claims(connection, fences, lease=LEASE, max_crashes=5, now=now)


either_way = pytest.mark.parametrize("rescue", [by_lease, by_claim], ids=["lease", "claims"])


def a_claim(connection: Connection, **options):
    return claimed_task(connection, pending_task(connection, now=NOON, **options), now=NOON)


@either_way
def test_a_rescued_task_comes_back_with_one_crash_more_and_no_failure(
    connection: Connection, rescue
) -> None:
    task = a_claim(connection, failures=1)

    assert rescue(connection, task) == {task.task_id: State.PENDING}

    row = row_of(connection, task.task_id)
    assert (row.state, row.crashes, row.failures, row.attempt) == ("PENDING", 1, 1, 2)
    assert (row.lease_token, row.lease_until, row.owner) == (None, None, None)


def test_a_lease_is_over_only_after_its_last_instant(connection: Connection) -> None:
    task = a_claim(connection)

    assert by_lease(connection, now=NOON + LEASE) == {}
    assert by_lease(connection, now=OVER) == {task.task_id: State.PENDING}


@either_way
def test_a_pending_task_is_not_rescued(connection: Connection, rescue) -> None:
    task = a_claim(connection)
    release(connection, [task.fence], now=NOON)

    assert rescue(connection, task) == {}
    assert row_of(connection, task.task_id).crashes == 0


@pytest.mark.parametrize("wrong", ["token", "attempt", "task_id"])
def test_claims_of_a_dead_child_are_taken_back_under_the_fence_only(
    connection: Connection, wrong: str
) -> None:
    fence = a_claim(connection).fence
    stale = {"token": uuid4(), "attempt": fence.attempt + 1, "task_id": fence.task_id + 1}
    wrong_fence = fence._replace(**{wrong: stale[wrong]})

    assert rescue_claims(connection, [wrong_fence], lease=LEASE, max_crashes=5) == {}


def test_claims_of_a_dead_child_come_back_although_their_lease_still_holds(
    connection: Connection,
) -> None:
    task = a_claim(connection)

    assert by_claim(connection, task, now=NOON) == {task.task_id: State.PENDING}


@either_way
@pytest.mark.parametrize(("before", "after"), [(3, State.PENDING), (4, State.FAILED)])
def test_the_task_that_was_on_board_too_often_goes_to_the_error_pool(
    connection: Connection, rescue, before: int, after: State
) -> None:
    task = a_claim(connection, crashes=before)

    assert rescue(connection, task) == {task.task_id: after}

    if after is State.FAILED:
        row = row_of(connection, task.task_id, "task_error")
        assert row.crashes == 5
        assert row.error.startswith("worker vanished: ")
        assert "5 of at most 5" in row.error


@either_way
def test_the_outcome_of_an_at_most_once_task_is_unknown(connection: Connection, rescue) -> None:
    task = a_claim(connection, at_most_once=True)

    assert rescue(connection, task) == {task.task_id: State.FAILED}

    assert row_of(connection, task.task_id, "task_error").error.startswith("outcome unknown: ")


@either_way
@pytest.mark.parametrize("options", [{}, {"crashes": 4}, {"at_most_once": True}])
def test_a_task_that_was_to_be_cancelled_is_cancelled(
    connection: Connection, rescue, options
) -> None:
    task = a_claim(connection, **options)
    cancel(connection, task.task_id)

    assert rescue(connection, task) == {task.task_id: State.CANCELLED}
    assert pool_of_task(connection, task.task_id) == "completed CANCELLED"


@either_way
def test_a_rescue_leaves_a_line_in_the_history(connection: Connection, rescue) -> None:
    task = a_claim(connection)

    rescue(connection, task)

    (line,) = failed_attempts(connection, task.task_id)
    assert (line.event, line.kind, line.attempt) == ("rescue", "worker vanished", 1)
    assert (line.owner, line.started_at, line.ended_at) == ("w1", NOON, OVER)


@pytest.mark.parametrize(("crashes", "times"), [(0, 5 / 30), (1, 4), (3, 16)])
def test_rescued_tasks_come_back_at_random_distances_that_double_with_each_crash(
    connection: Connection, crashes: int, times: int
) -> None:
    tasks = [a_claim(connection, crashes=crashes) for _ in range(60)]

    by_lease(connection)

    waits = [(row_of(connection, t.task_id).due_at - OVER) / LEASE for t in tasks]
    assert len(set(waits)) > 50
    assert 0 <= min(waits) < times * 0.2
    assert times * 0.8 < max(waits) <= times
    assert all(row_of(connection, t.task_id).scan_at >= OVER for t in tasks[:5])


def test_at_most_so_many_are_rescued_at_once_lowest_id_first(connection: Connection) -> None:
    tasks = [a_claim(connection) for _ in range(3)]

    first = rescue_expired(connection, lease=LEASE, max_crashes=5, most=2, now=OVER)

    assert sorted(first) == [t.task_id for t in tasks[:2]]
    assert sorted(by_lease(connection)) == [tasks[2].task_id]


def test_only_those_whose_lease_is_over_are_rescued(connection: Connection) -> None:
    dead = a_claim(connection)
    alive = claimed_task(connection, now=OVER)

    assert by_lease(connection) == {dead.task_id: State.PENDING}
    assert pool_of_task(connection, alive.task_id) == "pending RUNNING"


def test_no_claims_to_take_back_is_no_error(connection: Connection) -> None:
    assert rescue_claims(connection, [], lease=LEASE, max_crashes=5) == {}


def test_a_task_with_very_many_crashes_behind_it_does_not_overflow(connection: Connection) -> None:
    task = a_claim(connection, crashes=200)

    moved = rescue_expired(connection, lease=LEASE, max_crashes=10_000, now=OVER)

    assert moved == {task.task_id: State.PENDING}
    assert row_of(connection, task.task_id).due_at <= OVER + LEASE * 1024
    assert count(connection) == 1


@either_way
@pytest.mark.parametrize("at_most_once", [True, False])
def test_a_rescue_has_the_fingerprint_of_what_it_says(
    connection: Connection, rescue, at_most_once: bool
) -> None:
    crashes = 0 if at_most_once else 4
    task = a_claim(connection, at_most_once=at_most_once, crashes=crashes)

    assert rescue(connection, task) == {task.task_id: State.FAILED}

    row = connection.execute(
        text(
            "SELECT e.fingerprint, a.kind, a.message FROM task_error e JOIN task_attempt a ON true"
        )
    ).one()
    assert row.fingerprint == fingerprint_of(Cause(row.kind, row.message))
