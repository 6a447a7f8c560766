"""Two verbs meet on one row: every pair that can, step by step on two connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine

from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep
from tasks_app.pool.runs.claim import Claims, claim, claim_next
from tasks_app.pool.runs.leases import release, release_token, renew, rescue_claims, rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one, still_held
from tasks_app.pool.tasks.cancel import Cancelled, CancelledMany, cancel, cancel_many
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tests.factory import (
    LEASE,
    claimed_task,
    claimer,
    count,
    ending,
    pending_task,
    pool_of_task,
    row_of,
    unknown,
)
from tests.pool.interleave import Blocked, blocked, gate, two
from tests.pool.runs.racing import OVER, Pair, committed, failing, rescue, take

Stop = Callable[[Connection, Callable[[Connection], Any]], Blocked]


@pytest.fixture
def pair(engine: Engine) -> Iterator[Pair]:
    with two(engine) as connections:
        yield connections


# claim x claim


def test_claim_then_claim_before_the_commit_the_second_skips_the_row(pair: Pair) -> None:
    a, b = pair
    mine, free = (committed(a, pending_task) for _ in range(2))

    assert take(a, [mine]) == [mine]
    assert take(b, [mine, free]) == [free]


@pytest.mark.parametrize("way", [Claims.UNGATED, Claims.UNHINDERED])
def test_claim_reads_then_another_claim_commits_then_the_first_re_checks_and_takes_nothing(
    engine: Engine, pair: Pair, way: Claims
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    with gate(engine) as stop:
        half_way = stop(b, lambda c: claim(c, [task_id], claimer(), uuid4(), way))

        assert take(a, [task_id]) == [task_id]
        a.commit()

    assert half_way.result() == []
    assert row_of(b, task_id).attempt == 1


def test_claim_next_reads_then_a_claim_commits_then_it_re_checks_and_takes_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    with gate(engine) as stop:
        half_way = stop(b, lambda c: claim_next(c, ["default"], 9, claimer(), uuid4()))

        assert take(a, [task_id]) == [task_id]
        a.commit()

    assert half_way.result() == []


def test_claim_reads_then_a_claim_and_its_release_commit_then_the_first_finds_it_due_later(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    with gate(engine) as stop:
        half_way = stop(b, lambda c: take(c, [task_id]))

        task = committed(a, claimed_task, task_id)
        committed(a, release, [task.fence])

    assert half_way.result() == []  # due from the release on, and that is after its own instant
    assert take(b, [task_id]) == [task_id]


# claim x cancel


def test_cancel_locks_then_claim_skips_then_the_cancel_commits(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)

    assert cancel(a, task_id) is Cancelled.CANCELLED
    assert take(b, [task_id]) == []
    a.commit()

    assert pool_of_task(b, task_id) == "completed CANCELLED"


def test_cancel_locks_and_rolls_back_then_the_task_can_be_claimed(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    cancel(a, task_id)

    a.rollback()

    assert take(b, [task_id]) == [task_id]


@pytest.mark.parametrize(
    ("stop_it", "told"),
    [
        (cancel, Cancelled.REQUESTED),
        (
            lambda c, task_id: cancel_many(c, name="t", biz_key=None),
            CancelledMany(cancelled=0, requested=1),
        ),
    ],
    ids=["one", "many"],
)
def test_claim_is_open_then_cancel_waits_and_flags_what_then_runs(
    engine: Engine, pair: Pair, stop_it, told
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    take(a, [task_id])
    waiting = blocked(engine, b, a, lambda c: stop_it(c, task_id))

    a.commit()

    assert waiting.result() == told
    b.commit()
    row = row_of(a, task_id)
    assert row.state == "RUNNING"
    assert row.cancel_requested_at is not None


def test_claim_is_open_then_cancel_waits_then_the_claim_rolls_back_and_it_is_cancelled(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    take(a, [task_id])
    waiting = blocked(engine, b, a, lambda c: cancel(c, task_id))

    a.rollback()

    assert waiting.result() is Cancelled.CANCELLED
    b.commit()
    assert pool_of_task(a, task_id) == "completed CANCELLED"


def test_claim_reads_then_cancel_commits_then_the_claim_finds_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    with gate(engine) as stop:
        half_way = stop(b, lambda c: take(c, [task_id]))

        committed(a, cancel, task_id)

    assert half_way.result() == []


# settle x cancel


def test_a_cancel_of_one_member_is_open_then_a_group_settles_the_others_without_waiting(
    pair: Pair,
) -> None:
    a, b = pair
    tasks = [committed(a, claimed_task) for _ in range(3)]
    cancel(a, tasks[1].task_id)

    moved = settle_group(b, [ending(t) for t in tasks])

    assert moved.keys() == {tasks[0].task_id, tasks[2].task_id}
    assert still_held(b, [t.fence for t in tasks]) == {tasks[1].task_id}


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Event.SUCCEED, State.SUCCEEDED),
        (Event.FAIL, State.CANCELLED),
        (Event.RETRY, State.CANCELLED),
        (Event.SNOOZE, State.CANCELLED),
        (Event.SKIP, State.SKIPPED),
    ],
)
def test_a_cancel_is_open_then_the_straggler_waits_and_is_settled_by_the_rule_after_its_commit(
    engine: Engine, pair: Pair, event: Event, state: State
) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    cancel(a, task.task_id)
    assert settle_group(b, [ending(task, event)]).keys() == set()
    waiting = blocked(engine, b, a, lambda c: settle_one(c, ending(task, event)))

    a.commit()

    assert waiting.result() is state
    b.commit()
    assert pool_of_task(a, task.task_id) == f"completed {state}"


def test_a_cancel_is_open_then_the_straggler_waits_and_fails_after_its_rollback(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    cancel(a, task.task_id)
    waiting = blocked(engine, b, a, lambda c: settle_one(c, failing(task)))

    a.rollback()

    assert waiting.result() is State.FAILED


@pytest.mark.parametrize("event", [Event.SUCCEED, Event.FAIL])
def test_a_settle_is_open_then_cancel_waits_and_says_already_over(
    engine: Engine, pair: Pair, event: Event
) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    settle_one(a, ending(task, event))
    waiting = blocked(engine, b, a, lambda c: cancel(c, task.task_id))

    a.commit()

    assert waiting.result() is Cancelled.ALREADY_OVER


def test_a_retry_is_open_then_cancel_waits_and_moves_the_pending_row(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    settle_one(a, ending(task, Event.RETRY, wait=LEASE))
    waiting = blocked(engine, b, a, lambda c: cancel(c, task.task_id))

    a.commit()

    assert waiting.result() is Cancelled.CANCELLED
    b.commit()
    assert pool_of_task(a, task.task_id) == "completed CANCELLED"


def test_group_settle_reads_then_cancel_commits_then_it_re_checks_and_cancels(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    low, high = (committed(a, claimed_task) for _ in range(2))
    both = [ending(low, Event.RETRY), ending(high, Event.RETRY)]
    with gate(engine) as stop:  # the clock is read for the first, so the second is not locked yet
        half_way = stop(b, lambda c: settle_group(c, both))

        committed(a, cancel, high.task_id)

    assert half_way.result().keys() == {low.task_id, high.task_id}
    b.commit()
    assert pool_of_task(a, low.task_id) == "pending PENDING"
    assert pool_of_task(a, high.task_id) == "completed CANCELLED"


def test_cancels_high_then_low_meet_a_group_settle_of_both_without_deadlock(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    low, high = (committed(a, claimed_task) for _ in range(2))
    cancel(a, high.task_id)

    assert settle_group(b, [failing(low), failing(high)]).keys() == {low.task_id}
    waiting = blocked(engine, a, b, lambda c: cancel(c, low.task_id))
    b.commit()
    assert waiting.result() is Cancelled.ALREADY_OVER
    a.commit()

    assert settle_one(b, failing(high)) is State.CANCELLED
    assert pool_of_task(b, low.task_id) == "error FAILED"


def test_cancels_high_then_low_meet_a_group_release_of_both_without_deadlock(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    low, high = (committed(a, claimed_task) for _ in range(2))
    cancel(a, high.task_id)

    assert release(b, [low.fence, high.fence]).keys() == {low.task_id}
    waiting = blocked(engine, a, b, lambda c: cancel(c, low.task_id))
    b.commit()

    assert waiting.result() is Cancelled.CANCELLED
    a.commit()
    assert release(b, [high.fence]).keys() == {high.task_id}
    assert pool_of_task(b, high.task_id) == "completed CANCELLED"


def test_two_cancels_of_many_take_the_rows_in_one_order_and_do_not_deadlock(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    for n in range(6):
        committed(a, pending_task, biz_key=("x", "y")[n % 2])
    assert cancel_many(a, name=None, biz_key="x").cancelled == 3
    waiting = blocked(engine, b, a, lambda c: cancel_many(c, name="t", biz_key=None))

    assert cancel_many(a, name="t", biz_key="x") == CancelledMany(0, 0)
    a.commit()

    assert waiting.result() == CancelledMany(cancelled=3, requested=0)


def test_a_cancel_of_low_is_open_then_cancel_many_waits_there_and_holds_nothing_higher(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    low, high = (committed(a, pending_task) for _ in range(2))
    cancel(a, low)
    waiting = blocked(engine, b, a, lambda c: cancel_many(c, name="t", biz_key=None))

    assert cancel(a, high) is Cancelled.CANCELLED
    a.commit()

    assert waiting.result() == CancelledMany(0, 0)


# settle x rescue


@pytest.mark.parametrize("settle", ["one", "group"])
def test_rescue_commits_then_the_stale_settle_changes_nothing(pair: Pair, settle: str) -> None:
    a, b = pair
    task = committed(a, claimed_task, lease=OVER)
    assert committed(a, rescue) == {task.task_id: State.PENDING}
    before = row_of(a, task.task_id)

    if settle == "one":
        assert settle_one(b, failing(task)) is None
    else:
        assert settle_group(b, [failing(task)]).keys() == set()
    b.commit()

    assert row_of(a, task.task_id) == before
    assert count(a, "task_attempt") == 1


def test_a_rescue_is_open_then_the_settle_waits_and_changes_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task, lease=OVER)
    rescue(a)
    assert settle_group(b, [ending(task)]).keys() == set()
    waiting = blocked(engine, b, a, lambda c: settle_one(c, ending(task)))

    a.commit()

    assert waiting.result() is None
    assert pool_of_task(a, task.task_id) == "pending PENDING"


def test_a_rescue_is_open_then_the_settle_waits_and_wins_after_its_rollback(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task, lease=OVER)
    rescue(a)
    waiting = blocked(engine, b, a, lambda c: settle_one(c, ending(task)))

    a.rollback()

    assert waiting.result() is State.SUCCEEDED


def test_a_settle_is_open_then_the_rescue_passes_by_and_finds_nothing_after_its_commit(
    pair: Pair,
) -> None:
    a, b = pair
    task = committed(a, claimed_task, lease=OVER)
    settle_one(a, ending(task))

    assert rescue(b) == {}
    a.commit()

    assert rescue(b) == {}
    assert pool_of_task(b, task.task_id) == "completed SUCCEEDED"


def test_rescue_reads_then_the_settle_commits_then_it_re_checks_and_moves_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task, lease=OVER)
    with gate(engine) as stop:
        half_way = stop(b, rescue)

        committed(a, settle_one, ending(task))

    assert half_way.result() == {}
    b.commit()
    assert pool_of_task(a, task.task_id) == "completed SUCCEEDED"
    assert count(a, "task_attempt") == 0


def test_rescue_and_a_second_run_commit_then_only_the_newest_attempt_can_write(
    pair: Pair,
) -> None:
    a, b = pair
    stale = committed(a, claimed_task, lease=OVER)
    committed(a, rescue)
    a.exec_driver_sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    newest = committed(a, claimed_task, stale.task_id)

    assert settle_one(b, ending(stale)) is None
    assert release(b, [stale.fence]).keys() == set()
    assert renew(b, [stale.fence], LEASE).ids == frozenset()
    assert settle_one(b, ending(newest)) is State.SUCCEEDED


def test_two_rescuers_meet_and_each_row_is_charged_one_crash(pair: Pair) -> None:
    a, b = pair
    tasks = [committed(a, claimed_task, lease=OVER) for _ in range(2)]

    first = rescue_expired(a, lease=LEASE, max_crashes=5, most=1)
    second = rescue(b)
    a.commit()
    b.commit()

    assert sorted([*first, *second]) == [t.task_id for t in tasks]
    assert [row_of(a, t.task_id).crashes for t in tasks] == [1, 1]


def test_two_buriers_meet_at_the_fence(pair: Pair) -> None:
    a, b = pair
    task = committed(a, claimed_task)

    first = committed(a, rescue_claims, [task.fence], lease=LEASE, max_crashes=5)
    second = rescue_claims(b, [task.fence], lease=LEASE, max_crashes=5)

    assert (first, second) == ({task.task_id: State.PENDING}, {})


# renew x settle, rescue, cancel


def test_a_renewal_is_open_then_a_group_passes_by_and_the_straggler_waits(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    renew(a, [task.fence], LEASE)
    assert settle_group(b, [ending(task)]).keys() == set()
    waiting = blocked(engine, b, a, lambda c: settle_one(c, ending(task)))

    a.commit()

    assert waiting.result() is State.SUCCEEDED


def test_a_settle_is_open_then_the_renewal_passes_by(pair: Pair) -> None:
    a, b = pair
    settling, other = (committed(a, claimed_task) for _ in range(2))
    settle_one(a, ending(settling))

    renewed = renew(b, [settling.fence, other.fence], LEASE)

    assert renewed.ids == {other.task_id}


@pytest.mark.parametrize("event", [Event.SUCCEED, Event.RETRY])
def test_a_settle_commits_then_the_renewal_changes_nothing(pair: Pair, event: Event) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    committed(a, settle_one, ending(task, event))
    before = row_of(a, task.task_id)

    assert renew(b, [task.fence], LEASE).ids == frozenset()
    assert row_of(b, task.task_id) == before


def test_rescue_reads_an_expired_lease_then_the_renewal_commits_then_it_re_checks_and_lets_go(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task, lease=OVER)
    with gate(engine) as stop:
        half_way = stop(b, rescue)

        renewed = committed(a, renew, [task.fence], LEASE)

    assert renewed.ids == {task.task_id}
    assert half_way.result() == {}
    b.commit()
    row = row_of(a, task.task_id)
    assert (row.state, row.crashes) == ("RUNNING", 0)


def test_a_renewal_is_open_then_the_rescue_passes_by(pair: Pair) -> None:
    a, b = pair
    task = committed(a, claimed_task, lease=OVER)
    renew(a, [task.fence], LEASE)

    assert rescue(b) == {}


def test_a_rescue_is_open_then_the_renewal_passes_by_and_is_lost_after_its_commit(
    pair: Pair,
) -> None:
    a, b = pair
    task = committed(a, claimed_task, lease=OVER)
    rescue(a)

    assert renew(b, [task.fence], LEASE).ids == frozenset()
    a.commit()
    assert renew(b, [task.fence], LEASE).ids == frozenset()
    assert pool_of_task(b, task.task_id) == "pending PENDING"


def test_a_cancel_is_open_then_the_renewal_passes_by_and_hears_of_it_after_its_commit(
    pair: Pair,
) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    cancel(a, task.task_id)

    assert renew(b, [task.fence], LEASE).ids == frozenset()
    a.commit()
    assert renew(b, [task.fence], LEASE).cancelled == {task.task_id}


# release x settle, cancel, claim


def test_a_settle_is_open_then_a_group_release_passes_by_and_a_waiting_one_moves_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    settle_one(a, ending(task))
    assert release(b, [task.fence]).keys() == set()
    waiting = blocked(engine, b, a, lambda c: release(c, [task.fence], block=True))

    a.commit()

    assert waiting.result() == {}
    assert pool_of_task(a, task.task_id) == "completed SUCCEEDED"


def test_a_release_is_open_then_the_settle_waits_and_changes_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    release(a, [task.fence])
    waiting = blocked(engine, b, a, lambda c: settle_one(c, failing(task)))

    a.commit()

    assert waiting.result() is None
    assert pool_of_task(a, task.task_id) == "pending PENDING"


def test_a_failed_commit_was_none_then_the_release_takes_the_row_uncharged(pair: Pair) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    settle_one(a, failing(task))
    a.rollback()

    assert release(b, [task.fence], block=True).keys() == {task.task_id}
    assert row_of(b, task.task_id).failures == 0


def test_a_lost_claim_is_still_open_then_its_token_releases_nothing_until_it_commits(
    pair: Pair,
) -> None:
    a, b = pair
    task_id, token = committed(a, pending_task), uuid4()
    claim(a, [task_id], claimer(), token)

    assert release_token(b, token) == set()
    a.commit()

    assert release_token(b, token) == {task_id}


def test_a_cancel_is_open_then_a_waiting_release_ends_cancelled(engine: Engine, pair: Pair) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    cancel(a, task.task_id)
    waiting = blocked(engine, b, a, lambda c: release(c, [task.fence], block=True))

    a.commit()

    assert waiting.result().keys() == {task.task_id}
    b.commit()
    assert pool_of_task(a, task.task_id) == "completed CANCELLED"


# requeue x requeue, create


def finished(connection: Connection, event: Event, **options) -> int:
    task = claimed_task(connection, **options)
    settle_one(connection, ending(task, event))
    return task.task_id


@pytest.mark.parametrize("event", [Event.FAIL, Event.SUCCEED])
def test_a_requeue_is_open_then_the_second_waits_and_finds_it_pending(
    engine: Engine, pair: Pair, event: Event
) -> None:
    a, b = pair
    task_id = committed(a, finished, event)
    assert requeue(a, task_id) is Requeued.REQUEUED
    waiting = blocked(engine, b, a, lambda c: requeue(c, task_id))

    a.commit()

    assert waiting.result() is Requeued.STILL_PENDING
    b.commit()
    assert pool_of_task(a, task_id) == "pending PENDING"


@pytest.mark.parametrize("event", [Event.FAIL, Event.SUCCEED])
def test_a_requeue_is_open_then_the_second_waits_and_moves_it_after_the_firsts_rollback(
    engine: Engine, pair: Pair, event: Event
) -> None:
    a, b = pair
    task_id = committed(a, finished, event)
    requeue(a, task_id)
    waiting = blocked(engine, b, a, lambda c: requeue(c, task_id))

    a.rollback()

    assert waiting.result() is Requeued.REQUEUED
    b.commit()
    assert pool_of_task(a, task_id) == "pending PENDING"


def test_a_producer_of_the_same_key_is_open_then_the_requeue_waits_and_is_refused(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, finished, Event.FAIL, unique_key="k")
    holder = pending_task(a, unique_key="k")
    waiting = blocked(engine, b, a, lambda c: requeue(c, task_id))

    a.commit()

    with pytest.raises(Exception, match=f"taken by task {holder}"):
        waiting.result()
    b.rollback()
    assert pool_of_task(a, task_id) == "error FAILED"


def test_a_requeue_is_open_then_a_cancel_of_it_sees_the_old_state_and_says_so(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, finished, Event.FAIL)
    requeue(a, task_id)

    assert cancel(b, task_id) is Cancelled.ALREADY_OVER


# claim x sweep, park


def test_a_claim_is_open_then_the_sweep_passes_by(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    take(a, [task_id])
    a.exec_driver_sql("UPDATE task_pending SET enabled = false")

    assert sweep(b, [task_id]) == {}
    a.commit()

    assert sweep(b, [task_id]) == {}


def test_a_cancel_of_a_disabled_task_is_open_then_the_sweep_passes_by(pair: Pair) -> None:
    a, b = pair
    held, free = (committed(a, pending_task, enabled=False) for _ in range(2))
    cancel(a, held)

    assert sweep(b, [held, free]) == {free: State.SKIPPED}


def test_a_sweep_is_open_then_the_claim_skips_the_row(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, enabled=False)
    assert sweep(a, [task_id]) == {task_id: State.SKIPPED}

    assert take(b, [task_id]) == []
    a.commit()
    assert take(b, [task_id]) == []


def test_sweep_reads_then_the_task_is_enabled_and_claimed_then_it_re_checks_and_leaves_it(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task, enabled=False)
    with gate(engine) as stop:
        half_way = stop(b, lambda c: sweep(c, [task_id]))

        a.exec_driver_sql("UPDATE task_pending SET enabled = true")
        take(a, [task_id])
        a.commit()

    assert half_way.result() == {}
    assert pool_of_task(a, task_id) == "pending RUNNING"


def test_claim_reads_then_the_task_is_disabled_then_it_re_checks_and_takes_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    with gate(engine) as stop:
        half_way = stop(b, lambda c: take(c, [task_id]))

        a.exec_driver_sql("UPDATE task_pending SET enabled = false")
        a.commit()

    assert half_way.result() == []


def test_a_claim_is_open_then_park_passes_by_and_the_run_keeps_its_row(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    take(a, [task_id])

    park_tasks(b, [task_id], unknown("late"), timedelta(seconds=15))
    b.commit()
    a.commit()

    row = row_of(b, task_id)
    assert (row.state, row.parked) == ("RUNNING", None)


def test_park_reads_then_a_claim_commits_then_it_re_checks_and_parks_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    with gate(engine) as stop:
        half_way = stop(
            b, lambda c: park_tasks(c, [task_id], unknown("late"), timedelta(seconds=15))
        )

        take(a, [task_id])
        a.commit()

    half_way.result()
    b.commit()
    row = row_of(a, task_id)
    assert (row.state, row.parked) == ("RUNNING", None)


def test_a_park_is_open_then_the_claim_skips_the_row_and_takes_it_after_the_commit(
    pair: Pair,
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    park_tasks(a, [task_id], unknown("paused"), timedelta(seconds=15))

    assert take(b, [task_id]) == []
    a.commit()
    assert take(b, [task_id]) == [task_id]
