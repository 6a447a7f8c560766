"""Release: claims go back uncharged, under the fence or by the token of a lost reply."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release, release_token
from tasks_app.pool.tasks.cancel import cancel
from tests.factory import claimed_task, claimer, count, pending_task, pool_of_task, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)

either_way = pytest.mark.parametrize("block", [False, True], ids=["group", "waiting"])


@either_way
def test_a_released_claim_is_pending_again_and_nothing_is_charged(
    connection: Connection, block
) -> None:
    task = claimed_task(connection, pending_task(connection, failures=1, crashes=1), now=None)

    assert release(connection, [task.fence], block=block, now=LATER).keys() == {task.task_id}

    row = row_of(connection, task.task_id)
    assert (row.state, row.failures, row.crashes, row.retry_level) == ("PENDING", 1, 1, 0)
    assert (row.lease_token, row.lease_until, row.owner) == (None, None, None)
    assert row.due_at == row.scan_at == LATER
    assert row.attempt == task.fence.attempt
    assert count(connection, "task_attempt") == 0


def test_a_release_may_wait(connection: Connection) -> None:
    task = claimed_task(connection, now=NOON)

    release(connection, [task.fence], wait=timedelta(seconds=5), now=LATER)

    assert row_of(connection, task.task_id).due_at == LATER + timedelta(seconds=5)


@either_way
@pytest.mark.parametrize("wrong", ["token", "attempt", "task_id"])
def test_a_stale_fence_releases_nothing(connection: Connection, block, wrong: str) -> None:
    fence = claimed_task(connection).fence
    stale = {"token": uuid4(), "attempt": fence.attempt + 1, "task_id": fence.task_id + 1}

    assert (
        release(connection, [fence._replace(**{wrong: stale[wrong]})], block=block).keys() == set()
    )
    assert pool_of_task(connection, fence.task_id) == "pending RUNNING"


@either_way
def test_a_released_task_that_was_to_be_cancelled_does_not_come_back(
    connection: Connection, block
) -> None:
    task = claimed_task(connection)
    cancel(connection, task.task_id)

    assert release(connection, [task.fence], block=block).keys() == {task.task_id}
    assert pool_of_task(connection, task.task_id) == "completed CANCELLED"


def test_of_a_group_those_go_back_whose_fence_holds(connection: Connection) -> None:
    good, stale = claimed_task(connection), claimed_task(connection)
    release(connection, [stale.fence])

    assert release(connection, [good.fence, stale.fence]).keys() == {good.task_id}


def test_nothing_to_release_is_no_error(connection: Connection) -> None:
    assert release(connection, []).keys() == set()


def test_a_claim_whose_reply_was_lost_is_given_back_by_its_token_uncharged(
    connection: Connection,
) -> None:
    ids, token = [pending_task(connection) for _ in range(3)], uuid4()
    claim(connection, ids, claimer(), token)
    other = claimed_task(connection)

    assert release_token(connection, token, now=LATER) == set(ids)
    assert {row_of(connection, i).state for i in ids} == {"PENDING"}
    assert {row_of(connection, i).failures for i in ids} == {0}
    assert {row_of(connection, i).due_at for i in ids} == {LATER}
    assert pool_of_task(connection, other.task_id) == "pending RUNNING"


def test_a_token_that_took_nothing_releases_nothing(connection: Connection) -> None:
    task = claimed_task(connection)

    assert release_token(connection, uuid4()) == set()
    assert pool_of_task(connection, task.task_id) == "pending RUNNING"


def test_a_lost_claim_that_was_to_be_cancelled_does_not_come_back(connection: Connection) -> None:
    task = claimed_task(connection)
    cancel(connection, task.task_id)

    release_token(connection, task.fence.token)

    assert pool_of_task(connection, task.task_id) == "completed CANCELLED"
