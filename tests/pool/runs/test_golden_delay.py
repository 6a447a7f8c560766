"""The worked example of the sources: request 3003 and its nine waits, at exactly its instants."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.handlers.outcomes import Snooze
from tasks_app.domain.handlers.settlement import settle_exception, settle_return
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.run import Cause, ClaimedTask
from tasks_app.domain.tasks.states import State
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.create import create_one
from tests.factory import claimer, pool_of_task, row_of

NINE = "5s,30s,1m,10m,30m,1h,6h,1d,2d"
WAITS_S = [5, 30, 60, 600, 1800, 3600, 21_600, 86_400, 172_800]
SPEC = HandlerSpec("request.send", lambda ctx: None)


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-03T{clock}+00:00")


def create(connection: Connection, now: datetime, **options) -> int:
    new = NewTask("request.send", {"request": 3003}, {"retry": NINE, **options})
    return create_one(connection, validate_task(new, SPEC, 65536), now=now)


def claim_at(connection: Connection, task_id: int, now: datetime) -> ClaimedTask:
    early = claim(
        connection, [task_id], claimer("request.send"), uuid4(), now=now - timedelta(microseconds=1)
    )
    assert early == []
    assert find_due(connection, {"default": 9}, now=now - timedelta(microseconds=1)) == []
    assert find_due(connection, {"default": 9}, now=now)[0].ids == [task_id]
    (task,) = claim(connection, [task_id], claimer("request.send"), uuid4(), now=now)
    return task


def fail(connection: Connection, task: ClaimedTask, now: datetime) -> State | None:
    error = ConnectionError("no answer")
    cause = Cause("ConnectionError", "no answer")
    return settle_one(connection, settle_exception(task, SPEC, error, cause, Random(1)), now=now)


def test_request_3003_fails_twice_and_then_succeeds(connection: Connection) -> None:
    task_id = create(connection, at("10:00:00"), wait_first=True)
    row = row_of(connection, task_id)
    assert (row.due_at, row.retry_level) == (at("10:00:05"), 1)

    first = claim_at(connection, task_id, at("10:00:05"))
    assert fail(connection, first, at("10:00:05")) is State.PENDING
    row = row_of(connection, task_id)
    assert (row.due_at, row.retry_level, row.failures) == (at("10:00:35"), 2, 1)

    second = claim_at(connection, task_id, at("10:00:35"))
    assert fail(connection, second, at("10:00:35")) is State.PENDING
    row = row_of(connection, task_id)
    assert (row.due_at, row.retry_level, row.failures) == (at("10:01:35"), 3, 2)

    third = claim_at(connection, task_id, at("10:01:35"))
    assert settle_one(connection, settle_return(third, None, 5), now=at("10:01:35"))
    assert pool_of_task(connection, task_id) == "completed SUCCEEDED"
    row = row_of(connection, task_id, "task_completed")
    assert (row.failures, row.attempt, row.finished_at) == (2, 3, at("10:01:35"))


@pytest.mark.parametrize("wait_first", [True, False])
def test_each_level_is_waited_once_before_the_end(connection: Connection, wait_first: bool) -> None:
    now, waits = at("10:00:00"), []
    task_id = create(connection, now, wait_first=wait_first)
    while (row := row_of(connection, task_id)) is not None:
        waits.append((row.due_at - now).total_seconds())
        now = row.due_at
        fail(connection, claim_at(connection, task_id, now), now)
    assert waits == ([] if wait_first else [0]) + WAITS_S
    assert pool_of_task(connection, task_id) == "error FAILED"
    assert row_of(connection, task_id, "task_error").failures == len(waits)


def test_the_wait_counts_from_the_settle_and_not_from_the_claim(connection: Connection) -> None:
    task_id = create(connection, at("10:00:00"), wait_first=True)
    task = claim_at(connection, task_id, at("10:00:05"))
    fail(connection, task, at("10:00:20"))
    assert row_of(connection, task_id).due_at == at("10:00:50")


def test_a_snooze_between_two_failures_takes_no_level(connection: Connection) -> None:
    task_id = create(connection, at("10:00:00"), wait_first=True)
    task = claim_at(connection, task_id, at("10:00:05"))
    later = settle_exception(task, SPEC, Snooze("10s"), Cause("Snooze", ""), Random(1))
    settle_one(connection, later, now=at("10:00:05"))
    fail(connection, claim_at(connection, task_id, at("10:00:15")), at("10:00:15"))
    row = row_of(connection, task_id)
    assert (row.due_at, row.retry_level, row.failures) == (at("10:00:45"), 2, 1)
