"""IdleCheck: one read that tells a quiet pool from one where somebody has something to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from tasks_app.pool.dispatch.scan import IdleCheck, check_idle
from tests.factory import LEASE, claimed_task, pending_task

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SOON = timedelta(seconds=10)


def test_an_empty_pool_is_quiet(connection: Connection) -> None:
    seen = check_idle(connection, now=NOON)

    assert seen == IdleCheck(expired=False, next_due=None)
    assert seen.is_quiet(SOON)


@pytest.mark.parametrize("queue", ["a", "m", "z"])
@pytest.mark.parametrize("priority", [0, 5, 9])
def test_the_first_row_of_any_queue_and_priority_counts(
    connection: Connection, queue: str, priority: int
) -> None:
    for other in ("a", "m", "z"):
        for rank in (0, 5, 9):
            late = NOON + timedelta(hours=1)
            pending_task(connection, queue=other, priority=rank, run_at=late, now=NOON)
    assert check_idle(connection, now=NOON).is_quiet(SOON)
    due_at = NOON + timedelta(seconds=9)

    pending_task(connection, queue=queue, priority=priority, run_at=due_at, now=NOON)

    seen = check_idle(connection, now=NOON)
    assert (seen.next_due, seen.is_quiet(SOON)) == (timedelta(seconds=9), False)
    assert seen.is_quiet(timedelta(seconds=8))
    assert check_idle(connection, now=NOON + SOON).next_due == timedelta(seconds=-1)


def test_a_running_task_is_quiet_until_its_lease_is_over(connection: Connection) -> None:
    claimed_task(connection, now=NOON)

    assert check_idle(connection, now=NOON + LEASE).is_quiet(SOON)
    assert check_idle(connection, now=NOON + LEASE + timedelta(microseconds=1)).expired
