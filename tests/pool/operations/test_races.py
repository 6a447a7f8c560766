"""Operators beside workers and other operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.operations import WAITING, Amendment, BulkAction
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep
from tasks_app.pool.flow_control.queue_settings import pause, resume
from tasks_app.pool.runs.leases import release, renew, rescue_claims
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.tasks.amend import amend, replace_payload
from tasks_app.pool.tasks.cancel import Cancelled, cancel
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tests.factory import LEASE, claimed_task, ending, pending_task, pool_of_task, row_of, unknown
from tests.pool.interleave import blocked, two
from tests.pool.runs.racing import OVER, Pair, committed, failing, rescue, take

AMENDED = '{"n": 2}'
SOON = timedelta(seconds=15)


@pytest.fixture
def pair(engine: Engine) -> Iterator[Pair]:
    with two(engine) as connections:
        yield connections


def disable(connection: Connection, task_id: int) -> None:
    connection.execute(
        text("UPDATE task_pending SET enabled = false WHERE id = :id"), {"id": task_id}
    )


def reaping(connection: Connection, task: ClaimedTask) -> dict[int, State]:
    return rescue_claims(connection, [task.fence], lease=LEASE, max_crashes=5)


# amend x settle, rescue, cancel, renew
@pytest.mark.parametrize(
    "leave",
    [
        lambda c, t: settle_one(c, ending(t)),
        lambda c, t: settle_one(c, ending(t, Event.RETRY)),
        lambda c, t: release(c, [t.fence]),
        reaping,
    ],
    ids=["settle", "retry", "release", "reaping"],
)
def test_the_run_is_about_to_be_over_then_amend_waits_and_changes_nothing(
    engine: Engine, pair: Pair, leave: Callable[[Connection, ClaimedTask], Any]
) -> None:
    a, b = pair
    task = committed(a, claimed_task, payload={"n": 1})
    leave(a, task)
    waiting = blocked(engine, b, a, lambda c: replace_payload(c, task.fence, AMENDED))
    a.commit()
    assert waiting.result() is False
    assert b.execute(text("SELECT payload FROM task_all")).scalar_one() == {"n": 1}


def test_an_amend_is_open_then_a_group_and_a_rescue_pass_by_and_the_straggler_keeps_it(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task, payload={"n": 1}, lease=OVER)
    assert replace_payload(a, task.fence, AMENDED)
    assert settle_group(b, [ending(task, Event.RETRY)]) == {}
    assert rescue(b) == {}
    assert renew(b, [task.fence], LEASE).ids == frozenset()
    waiting = blocked(engine, b, a, lambda c: settle_one(c, ending(task, Event.RETRY)))
    a.commit()
    assert waiting.result() is State.PENDING
    assert row_of(b, task.task_id).payload == {"n": 2}


def test_a_cancel_is_open_then_amend_waits_and_both_are_there(engine: Engine, pair: Pair) -> None:
    a, b = pair
    task = committed(a, claimed_task, payload={"n": 1})
    cancel(a, task.task_id)
    waiting = blocked(engine, b, a, lambda c: replace_payload(c, task.fence, AMENDED))
    a.commit()
    assert waiting.result() is True
    row = row_of(b, task.task_id)
    assert row.cancel_requested_at is not None
    assert row.payload == {"n": 2}


# requeue x settle, rescue, claim
def test_a_failure_is_open_then_requeue_does_not_wait_and_says_still_pending(pair: Pair) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    settle_one(a, failing(task))
    assert requeue(b, task.task_id) is Requeued.STILL_PENDING
    a.commit()
    assert requeue(b, task.task_id) is Requeued.REQUEUED


def test_a_rescue_to_the_error_pool_is_open_then_requeue_says_still_pending(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, crashes=4)
    task = committed(a, claimed_task, task_id)
    assert reaping(a, task) == {task_id: State.FAILED}
    assert requeue(b, task_id) is Requeued.STILL_PENDING
    a.commit()
    assert requeue(b, task_id) is Requeued.REQUEUED


def test_a_requeue_is_open_then_nobody_claims_the_task_and_the_late_run_writes_nothing(
    pair: Pair,
) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    committed(a, settle_one, failing(task))
    requeue(a, task.task_id)
    assert take(b, [task.task_id]) == []
    assert settle_one(b, ending(task)) is None
    a.commit()
    assert settle_one(b, ending(task)) is None
    assert reaping(b, task) == {}
    assert take(b, [task.task_id]) == [task.task_id]


# pause, resume x claim, settle
def test_a_pause_is_open_then_tasks_are_claimed_until_its_commit_and_runs_end_after_it(
    pair: Pair,
) -> None:
    a, b = pair
    early, late = (committed(a, pending_task) for _ in range(2))
    running = committed(a, claimed_task)
    pause(a, "default")
    assert take(b, [early]) == [early]
    a.commit()
    assert take(b, [late]) == []
    assert settle_one(b, ending(running)) is State.SUCCEEDED


def test_a_resume_is_open_then_nothing_is_claimed_until_its_commit(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    committed(a, pause, "default")
    resume(a, "default")
    assert take(b, [task_id]) == []
    a.commit()
    assert take(b, [task_id]) == [task_id]


def test_a_pause_is_open_then_the_second_waits_and_pauses_after_its_rollback(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    pause(a, "default")
    waiting = blocked(engine, b, a, lambda c: pause(c, "default"))
    a.rollback()
    assert waiting.result() is True


# disable x settle, rescue; sweep x sweep, park; create x settle
def test_a_person_disables_what_runs_then_groups_pass_by_and_the_straggler_waits(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task, lease=OVER)
    disable(a, task.task_id)
    assert settle_group(b, [ending(task)]) == {}
    assert rescue(b) == {}
    waiting = blocked(engine, b, a, lambda c: settle_one(c, ending(task)))
    a.commit()
    assert waiting.result() is State.SUCCEEDED


def test_two_sweeps_and_a_park_meet_and_the_task_is_moved_once(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, enabled=False)
    assert sweep(a, [task_id]) == {task_id: State.SKIPPED}
    assert sweep(b, [task_id]) == {}
    park_tasks(b, [task_id], unknown("late"), SOON)
    b.commit()
    a.commit()
    assert pool_of_task(b, task_id) == "completed SKIPPED"


def test_a_park_is_open_then_the_sweep_passes_by_and_cancel_waits(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task, enabled=False)
    park_tasks(a, [task_id], unknown("late"), SOON)
    assert sweep(b, [task_id]) == {}
    waiting = blocked(engine, b, a, lambda c: cancel(c, task_id))
    a.commit()
    waiting.result()
    b.commit()
    assert pool_of_task(a, task_id) == "completed CANCELLED"


@pytest.mark.parametrize("commits", [True, False])
def test_the_end_of_a_keys_holder_is_open_then_its_next_producer_waits(
    engine: Engine, pair: Pair, *, commits: bool
) -> None:
    a, b = pair
    task = committed(a, claimed_task, unique_key="k")
    settle_one(a, ending(task))
    waiting = blocked(engine, b, a, lambda c: pending_task(c, unique_key="k"))
    a.commit() if commits else a.rollback()
    made = waiting.result()
    assert made.created is commits
    assert (made == task.task_id) is not commits


ACTIONS = sorted(WAITING - {BulkAction.ENABLE, BulkAction.RELEASE, BulkAction.RUN_NOW})
"""Those that change a task which is due, enabled and not held."""
CHANGES = {
    BulkAction.RESCHEDULE: Amendment(delay=timedelta(hours=1)),
    BulkAction.REPRIORITISE: Amendment(to_priority=0),
    BulkAction.MOVE: Amendment(to_queue="slow"),
}


def do(connection: Connection, action: BulkAction, task_id: int) -> list[int]:
    return amend(connection, action, [task_id], CHANGES.get(action, Amendment()))


def found(connection: Connection) -> list[int]:
    return [i for rows in find_due(connection, {"default": 10}) for i in rows.ids]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_claim_is_open_then_the_verb_waits_and_leaves_what_runs_as_it_is(
    engine: Engine, pair: Pair, action: BulkAction
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    assert take(a, [task_id]) == [task_id]
    waiting = blocked(engine, b, a, lambda c: do(c, action, task_id))
    a.commit()
    assert waiting.result() == []
    row = row_of(b, task_id)
    assert (row.state, row.queue, row.priority, row.held_due_at) == ("RUNNING", "default", 5, None)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_verb_is_open_then_a_claim_passes_by(pair: Pair, action: BulkAction) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    assert do(a, action, task_id) == [task_id]
    assert take(b, [task_id]) == []
    b.rollback()
    a.rollback()
    assert take(b, [task_id]) == [task_id]


def test_a_hold_has_committed_then_nobody_claims_it(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    committed(a, do, BulkAction.HOLD, task_id)
    assert take(b, [task_id]) == []


def test_a_release_is_open_then_a_claim_takes_it_only_after_its_commit(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    committed(a, do, BulkAction.HOLD, task_id)
    do(a, BulkAction.RELEASE, task_id)
    assert take(b, [task_id]) == []
    b.rollback()
    a.commit()
    assert take(b, [task_id]) == [task_id]


def test_two_release_it_then_the_second_waits_and_changes_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    committed(a, do, BulkAction.HOLD, task_id)
    do(a, BulkAction.RELEASE, task_id)
    waiting = blocked(engine, b, a, lambda c: do(c, BulkAction.RELEASE, task_id))
    a.commit()
    assert waiting.result() == []


@pytest.mark.parametrize("action", ACTIONS)
def test_a_cancel_is_open_then_the_verb_waits_and_does_nothing(
    engine: Engine, pair: Pair, action: BulkAction
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    assert cancel(a, task_id) is Cancelled.CANCELLED
    waiting = blocked(engine, b, a, lambda c: do(c, action, task_id))
    a.commit()
    assert waiting.result() == []
    assert pool_of_task(b, task_id) == "completed CANCELLED"


@pytest.mark.parametrize("action", ACTIONS)
def test_a_verb_is_open_then_a_cancel_waits_and_cancels(
    engine: Engine, pair: Pair, action: BulkAction
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    before = row_of(a, task_id).due_at
    do(a, action, task_id)
    waiting = blocked(engine, b, a, lambda c: cancel(c, task_id))
    a.commit()
    assert waiting.result() is Cancelled.CANCELLED
    row = row_of(b, task_id, "task_completed")
    assert (row.due_at == before) == (action is not BulkAction.RESCHEDULE)


def test_a_cancel_is_open_then_run_now_waits_and_does_nothing(engine: Engine, pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, delay="1h")
    cancel(a, task_id)
    waiting = blocked(engine, b, a, lambda c: do(c, BulkAction.RUN_NOW, task_id))
    a.commit()
    assert waiting.result() == []


def test_run_now_is_open_then_a_hold_waits_and_holds_what_is_due_by_then(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task, delay="1h")
    do(a, BulkAction.RUN_NOW, task_id)
    became = row_of(a, task_id).due_at
    waiting = blocked(engine, b, a, lambda c: do(c, BulkAction.HOLD, task_id))
    a.commit()
    assert waiting.result() == [task_id]
    assert row_of(b, task_id).held_due_at == became


def test_a_scan_has_found_it_before_the_hold_then_its_message_claims_nothing(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    assert found(b) == [task_id]
    b.rollback()
    committed(a, do, BulkAction.HOLD, task_id)
    assert found(b) == []
    assert take(b, [task_id]) == []


def test_a_hold_is_open_then_a_sweep_passes_by_and_the_disabled_task_stays(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, enabled=False)
    do(a, BulkAction.HOLD, task_id)
    assert sweep(b, [task_id]) == {}
    b.rollback()
    a.commit()
    assert sweep(b, [task_id]) == {}
    assert pool_of_task(b, task_id) == "pending PENDING"


def test_a_sweep_is_open_then_the_hold_waits_and_it_is_over(engine: Engine, pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, enabled=False)
    assert sweep(a, [task_id]) == {task_id: State.SKIPPED}
    waiting = blocked(engine, b, a, lambda c: do(c, BulkAction.HOLD, task_id))
    a.commit()
    assert waiting.result() == []
