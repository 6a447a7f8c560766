"""Renew: what this child still holds stays its own, and it hears who shall stop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from tasks_app.pool.runs.leases import release, renew
from tasks_app.pool.tasks.cancel import cancel
from tests.factory import LEASE, claimed_task, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=10)


def test_a_renewal_pushes_the_lease(connection: Connection) -> None:
    tasks = [claimed_task(connection, now=NOON) for _ in range(3)]

    renewed = renew(connection, [t.fence for t in tasks], LEASE, now=LATER)

    assert renewed.ids == {t.task_id for t in tasks}
    assert renewed.cancelled == frozenset()
    assert {row_of(connection, t.task_id).lease_until for t in tasks} == {LATER + LEASE}


@pytest.mark.parametrize("wrong", ["token", "attempt", "task_id"])
def test_a_stale_fence_renews_nothing(connection: Connection, wrong: str) -> None:
    fence = claimed_task(connection, now=NOON).fence
    stale = {"token": uuid4(), "attempt": fence.attempt + 1, "task_id": fence.task_id + 1}

    renewed = renew(connection, [fence._replace(**{wrong: stale[wrong]})], LEASE, now=LATER)

    assert renewed.ids == frozenset()
    assert row_of(connection, fence.task_id).lease_until == NOON + LEASE


def test_a_claim_that_was_given_back_is_not_renewed(connection: Connection) -> None:
    task = claimed_task(connection)
    release(connection, [task.fence])

    assert renew(connection, [task.fence], LEASE).ids == frozenset()
    assert row_of(connection, task.task_id).lease_until is None


def test_a_renewal_tells_whose_cancellation_was_asked_for(connection: Connection) -> None:
    stop, go = claimed_task(connection), claimed_task(connection)
    cancel(connection, stop.task_id)

    renewed = renew(connection, [stop.fence, go.fence], LEASE)

    assert renewed.ids == {stop.task_id, go.task_id}
    assert renewed.cancelled == {stop.task_id}


def test_a_lease_that_ran_out_unnoticed_may_still_be_renewed(connection: Connection) -> None:
    task = claimed_task(connection, now=NOON)

    renewed = renew(connection, [task.fence], LEASE, now=NOON + timedelta(hours=1))

    assert renewed.ids == {task.task_id}


def test_other_claims_of_the_same_owner_are_not_renewed(connection: Connection) -> None:
    mine, lost = (claimed_task(connection, owner="me", now=NOON) for _ in range(2))

    renew(connection, [mine.fence], LEASE, now=LATER)

    assert row_of(connection, lost.task_id).lease_until == NOON + LEASE


def test_nothing_to_renew_is_no_error(connection: Connection) -> None:
    assert renew(connection, [], LEASE).ids == frozenset()
