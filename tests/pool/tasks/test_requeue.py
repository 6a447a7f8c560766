"""Requeue, cancel, checkpoints."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.errors import UniqueKeyTakenError
from tasks_app.domain.tasks.run import Cause, Fence
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.dispatch.set_aside import sweep
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release, renew
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.browse import failed_attempts
from tasks_app.pool.tasks.cancel import Cancelled, CancelledMany, cancel, cancel_many
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tasks_app.pool.tasks.run_records import (
    Note,
    prune_checkpoints,
    read_checkpoint,
    read_steps,
    save_checkpoint,
    step_names,
)
from tests.factory import (
    LEASE,
    claimed_task,
    claimer,
    count,
    ending,
    pending_task,
    pool_of_task,
    row_of,
)
from tests.pool.interleave import blocked, two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def finished(connection: Connection, event: Event = Event.FAIL, **options) -> int:
    task = claimed_task(connection, pending_task(connection, now=NOON, **options), now=NOON)
    settle_one(connection, ending(task, event, cause=Cause("E", "no")), now=NOON)
    return task.task_id


@pytest.mark.parametrize("event", [Event.FAIL, Event.SUCCEED, Event.SKIP, Event.CANCEL])
def test_a_finished_task_comes_back_due_now_by_its_id(connection: Connection, event: Event) -> None:
    task_id = finished(connection, event)
    assert requeue(connection, task_id, now=LATER) is Requeued.REQUEUED
    assert pool_of_task(connection, task_id) == "pending PENDING"
    row = row_of(connection, task_id)
    assert row.due_at == row.scan_at == LATER


@pytest.mark.parametrize("event", [Event.FAIL, Event.SUCCEED])
def test_attempts_go_on_and_charges_start_anew(connection: Connection, event: Event) -> None:
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


def test_a_task_that_was_skipped_when_disabled_is_enabled(connection: Connection) -> None:
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


def test_a_pending_task_is_cancelled_at_once(connection: Connection) -> None:
    task_id = pending_task(connection, failures=1)
    assert cancel(connection, task_id, now=NOON) is Cancelled.CANCELLED
    row = row_of(connection, task_id, "task_completed")
    assert (row.state, row.finished_at, row.failures) == ("CANCELLED", NOON, 1)
    assert pool_of_task(connection, task_id) == "completed CANCELLED"


def test_a_cancelled_task_of_the_future_keeps_its_due_time(connection: Connection) -> None:
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


def test_a_task_that_never_was_is_not_found_in_cancel(connection: Connection) -> None:
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


AT_5 = Note('{"after": 5}', changed=True, fraction=None, note=None)
HALF = Note(None, changed=False, fraction=0.5, note="half")
NOTHING = Note(None, changed=False, fraction=None, note=None)
STEP = NOTHING._replace(step="a", result='{"n": 1}')
CAUSE = Cause("E", "no")


def kept(connection: Connection, task) -> tuple | None:
    found = read_checkpoint(connection, task.task_id)
    return found and tuple(found[:3])


def test_what_is_kept_is_read_again(connection: Connection) -> None:
    task = claimed_task(connection)
    assert save_checkpoint(connection, task.fence, AT_5) is False
    assert kept(connection, task) == ({"after": 5}, None, None)


def test_what_is_not_said_stays(connection: Connection) -> None:
    task = claimed_task(connection)
    save_checkpoint(connection, task.fence, AT_5)
    save_checkpoint(connection, task.fence, HALF)
    assert kept(connection, task) == ({"after": 5}, 0.5, "half")
    save_checkpoint(connection, task.fence, NOTHING)
    assert kept(connection, task) == ({"after": 5}, 0.5, "half")
    save_checkpoint(connection, task.fence, AT_5._replace(checkpoint=None))
    assert kept(connection, task) == (None, 0.5, "half")


def steps(connection: Connection, task) -> dict[str, Any]:
    return {step.name: step.result for step in read_steps(connection, task.task_id)}


def test_steps_are_kept_beside_all_else(connection: Connection) -> None:
    task, other = claimed_task(connection), claimed_task(connection)
    assert save_checkpoint(connection, task.fence, AT_5._replace(step="b", result="null")) is False
    assert save_checkpoint(connection, task.fence, STEP) is False
    assert kept(connection, task) == ({"after": 5}, None, None)
    assert steps(connection, task) == {"a": {"n": 1}, "b": None}
    assert steps(connection, other) == {}


def test_a_step_knows_its_age_by_the_clock_of_the_database(connection: Connection) -> None:
    task = claimed_task(connection)
    save_checkpoint(connection, task.fence, STEP)
    connection.execute(text("UPDATE task_step SET at = statement_timestamp() - interval '90s'"))
    (step,) = read_steps(connection, task.task_id)
    assert 90 <= step.age_s < 91
    assert list(step_names(connection, task.task_id)) == ["a"]


def test_nothing_is_written_for_who_says_nothing(connection: Connection) -> None:
    task = claimed_task(connection)
    assert save_checkpoint(connection, task.fence, NOTHING) is False
    assert kept(connection, task) is None


@pytest.mark.parametrize("wrong", ["attempt", "token", "released"])
def test_a_stale_fence_keeps_nothing(connection: Connection, wrong: str) -> None:
    task = claimed_task(connection)
    fence = task.fence
    if wrong == "attempt":
        fence = fence._replace(attempt=2)
    elif wrong == "token":
        fence = Fence(fence.task_id, 1, claimed_task(connection).fence.token)
    else:
        release(connection, [fence])
    assert save_checkpoint(connection, fence, AT_5._replace(step="a", result="1")) is None
    assert kept(connection, task) is None
    assert steps(connection, task) == {}


def test_it_tells_who_shall_stop(connection: Connection) -> None:
    task = claimed_task(connection)
    cancel(connection, task.task_id)
    assert save_checkpoint(connection, task.fence, AT_5) is True


def test_nobody_else_has_the_row_until_the_commit_no_renewal_waits(engine: Engine) -> None:
    with engine.begin() as connection:
        task = claimed_task(connection)
    with two(engine) as (a, b):
        save_checkpoint(a, task.fence, AT_5)
        assert renew(b, [task.fence], LEASE) == frozenset()
        b.rollback()
        late = blocked(engine, b, a, lambda c: release(c, [task.fence], block=True))
        a.commit()
        late.result()
        b.commit()
        assert save_checkpoint(a, task.fence, AT_5) is None


def test_a_release_that_is_first_leaves_nothing_to_commit(engine: Engine) -> None:
    with engine.begin() as connection:
        task = claimed_task(connection)
    with two(engine) as (a, b):
        release(a, [task.fence])
        late = blocked(engine, b, a, lambda c: save_checkpoint(c, task.fence, STEP))
        a.commit()
        assert late.result() is None
        assert steps(b, task) == {}


def test_a_step_of_a_lost_run_does_not_hinder_the_one_of_the_next(engine: Engine) -> None:
    with engine.begin() as connection:
        task = claimed_task(connection)
    with two(engine) as (a, b):
        save_checkpoint(a, task.fence, STEP)
        late = blocked(engine, b, a, lambda c: release(c, [task.fence], block=True))
        a.rollback()  # its process dies
        late.result()
        (again,) = claim(b, [task.task_id], claimer(), task.fence.token)
        assert save_checkpoint(b, again.fence, STEP) is False
        b.commit()
        assert steps(a, task) == {"a": {"n": 1}}


@pytest.mark.parametrize(
    ("event", "stays"),
    [(Event.SUCCEED, False), (Event.SKIP, False), (Event.CANCEL, True), (Event.FAIL, True)],
)
@pytest.mark.parametrize("what", ["pruned", "requeued"])
def test_it_stays_while_the_task_may_go_on(connection: Connection, event, stays, what) -> None:
    task, goes_on = claimed_task(connection), claimed_task(connection)
    for each in (task, goes_on):
        save_checkpoint(connection, each.fence, AT_5)
        save_checkpoint(connection, each.fence, STEP)
    settle_one(connection, ending(task, event, cause=CAUSE))

    if what == "requeued":
        requeue(connection, task.task_id)
    else:
        later = datetime.now(UTC) + timedelta(hours=2)
        assert prune_checkpoints(connection, 10) == 0
        assert prune_checkpoints(connection, 10, now=later) == (0 if stays else 1)

    assert (kept(connection, task) is not None) is stays
    assert bool(steps(connection, task)) is stays
    assert kept(connection, goes_on) is not None
    assert steps(connection, goes_on)


def test_of_a_task_that_is_nowhere_nothing_stays(connection: Connection) -> None:
    task = claimed_task(connection)
    save_checkpoint(connection, task.fence, AT_5)
    connection.execute(text("DELETE FROM task_pending"))
    assert prune_checkpoints(connection, 10, now=datetime.now(UTC) + timedelta(hours=2)) == 1


def test_the_next_attempt_finds_it(connection: Connection) -> None:
    task_id = pending_task(connection)
    task = claimed_task(connection, task_id)
    save_checkpoint(connection, task.fence, AT_5)
    release(connection, [task.fence])
    (again,) = claim(connection, [task_id], claimer(), task.fence.token)
    assert again.fence.attempt == 2
    assert kept(connection, again) == ({"after": 5}, None, None)
