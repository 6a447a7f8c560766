"""Two verbs meet on one row: every pair that can, step by step on two connections."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.operations import WAITING, Amendment, BulkAction
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep
from tasks_app.pool.flow_control.queue_settings import pause, resume
from tasks_app.pool.runs.claim import Claims, claim, claim_next
from tasks_app.pool.runs.leases import (
    find_cancelled,
    release,
    release_token,
    renew,
    rescue_claims,
    rescue_expired,
)
from tasks_app.pool.runs.settle import settle_group, settle_one, still_held
from tasks_app.pool.tasks.amend import amend, replace_payload
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
from tests.pool.interleave import blocked, gate
from tests.pool.runs.racing import OVER, Pair, committed, failing, rescue, take

SOON = timedelta(seconds=15)
Verb = Callable[[Connection, Any], Any]
"""What one side does with the task: its id if it is pending, its run if it was claimed."""
Given = Callable[[Connection], Any]


def id_of(task: Any) -> int:
    return task.task_id if isinstance(task, ClaimedTask) else task


def stands(connection: Connection, task_id: int) -> str:
    """Its pool and state, and what else was done to it."""
    row = row_of(connection, task_id, "task_all")
    pending = row_of(connection, task_id)
    said = {
        "told to stop": pending is not None and pending.cancel_requested_at,
        "amended": row.payload == {"n": 2},
        "parked": pending is not None and pending.parked,
        f"{row.crashes} crashes": row.crashes,
        f"{row.failures} failures": row.failures,
        "held": pending is not None and pending.held_due_at,
        f"queue {row.queue}": row.queue != "default",
        f"priority {row.priority}": row.priority != 5,
    }
    return ", ".join([f"{row.pool} {row.state}", *(word for word in said if said[word])])


def plain(told: Any, task_id: int) -> Any:
    """An answer in which the id of the task is "it"."""
    if isinstance(told, dict):
        return {"it" if key == task_id else key: value for key, value in told.items()}
    if isinstance(told, list | set | frozenset):
        return ["it" if each == task_id else each for each in told]
    return told


# what is given


def over(connection: Connection) -> ClaimedTask:
    return claimed_task(connection, lease=OVER)


def disabled(connection: Connection) -> int:
    return pending_task(connection, enabled=False)


def delayed(connection: Connection) -> int:
    return pending_task(connection, delay="1h")


def keyed(connection: Connection) -> ClaimedTask:
    return claimed_task(connection, unique_key="k")


def crashed_often(connection: Connection) -> ClaimedTask:
    return claimed_task(connection, pending_task(connection, crashes=4))


def finished(connection: Connection, event: Event = Event.FAIL, **options: Any) -> int:
    task = claimed_task(connection, **options)
    settle_one(connection, ending(task, event))
    return task.task_id


def succeeded(connection: Connection) -> int:
    return finished(connection, Event.SUCCEED)


def held(connection: Connection) -> int:
    task_id = pending_task(connection)
    holds(connection, task_id)
    return task_id


def in_a_paused_queue(connection: Connection) -> int:
    pause(connection, "default")
    return pending_task(connection)


# what is done with it


def claims(connection: Connection, task: Any) -> list[int]:
    return take(connection, [id_of(task)])


def cancels(connection: Connection, task: Any) -> Cancelled:
    return cancel(connection, id_of(task))


def cancels_many(connection: Connection, task: Any) -> CancelledMany:
    return cancel_many(connection, name="t", biz_key=None)


def settles(event: Event = Event.SUCCEED, **changes: Any) -> Verb:
    return lambda connection, task: settle_one(connection, ending(task, event, **changes))


def in_a_group(event: Event = Event.SUCCEED) -> Verb:
    return lambda connection, task: settle_group(connection, [ending(task, event)])


def fails(connection: Connection, task: ClaimedTask) -> State | None:
    return settle_one(connection, failing(task))


succeeds, retries = settles(), settles(Event.RETRY)


def rescues(connection: Connection, task: Any) -> dict[int, State]:
    return rescue(connection)


def buries(connection: Connection, task: ClaimedTask) -> dict[int, State]:
    return rescue_claims(connection, [task.fence], lease=LEASE, max_crashes=5)


def renews(connection: Connection, task: ClaimedTask) -> frozenset[int]:
    return renew(connection, [task.fence], LEASE)


def hears(connection: Connection, task: ClaimedTask) -> tuple[list[str], list[str]]:
    """Renew, and look for a cancel."""
    renewed = renew(connection, [task.fence], LEASE)
    found = frozenset(find_cancelled(connection, [task.fence]))
    return plain(renewed, task.task_id), plain(found, task.task_id)


def releases(connection: Connection, task: ClaimedTask) -> dict[int, State]:
    return release(connection, [task.fence])


def releases_for_sure(connection: Connection, task: ClaimedTask) -> dict[int, State]:
    return release(connection, [task.fence], block=True)


def requeues(connection: Connection, task: Any) -> Requeued:
    return requeue(connection, id_of(task))


def sweeps(connection: Connection, task: Any) -> dict[int, State]:
    return sweep(connection, [id_of(task)])


def parks(connection: Connection, task: Any) -> None:
    park_tasks(connection, [id_of(task)], unknown("late"), SOON)


def amends(connection: Connection, task: ClaimedTask) -> bool:
    return replace_payload(connection, task.fence, '{"n": 2}')


def sets(what: str) -> Verb:
    """As a person does by hand."""
    change = text(f"UPDATE task_pending SET {what} WHERE id = :id")
    return lambda connection, task: connection.execute(change, {"id": id_of(task)}) and None


disables, enables = sets("enabled = false"), sets("enabled = true")


def both(*verbs: Verb) -> Verb:
    return lambda connection, task: [verb(connection, task) for verb in verbs] and None


def creates_the_next_of_its_key(connection: Connection, task: ClaimedTask) -> tuple[bool, bool]:
    """Whether it is new, and whether it is the task of before."""
    made = pending_task(connection, unique_key="k")
    return made.created, made == task.task_id


CHANGES = {
    BulkAction.RESCHEDULE: Amendment(delay=timedelta(hours=1)),
    BulkAction.REPRIORITISE: Amendment(to_priority=0),
    BulkAction.MOVE: Amendment(to_queue="slow"),
}
ACTIONS = sorted(WAITING - {BulkAction.ENABLE, BulkAction.RELEASE, BulkAction.RUN_NOW})
"""Those that change a task which is due, enabled and not held."""


def does(action: BulkAction) -> Verb:
    change = CHANGES.get(action, Amendment())
    return lambda connection, task: amend(connection, action, [id_of(task)], change)


holds, lets_go, runs_now = map(does, (BulkAction.HOLD, BulkAction.RELEASE, BulkAction.RUN_NOW))


def pauses(connection: Connection, task: Any) -> bool:
    return pause(connection, "default")


def resumes(connection: Connection, task: Any) -> bool:
    return resume(connection, "default")


class Waits(NamedTuple):
    """The first is open, the second waits for its end."""

    given: Given
    first: Verb
    second: Verb
    told: Any
    """What the second says in the end."""
    stands: str | None = None
    """The task, after both."""
    passing: tuple[Verb, ...] = ()
    """Who passes by meanwhile and changes nothing."""
    end: str = "commit"
    """Of the first."""


def some_are_told(stop_it: Verb, told: Any) -> Waits:
    return Waits(pending_task, claims, stop_it, told, "pending RUNNING, told to stop")


def after_a_cancel(event: Event, state: State) -> Waits:
    there = f"completed {state}"
    settle = settles(event)
    return Waits(claimed_task, cancels, settle, state, there, passing=(in_a_group(event),))


def amends_too_late(leave: Verb, there: str) -> Waits:
    return Waits(claimed_task, leave, amends, False, there)


WAITS: dict[str, Waits] = {
    "a claim, then a cancel flags what runs": some_are_told(cancels, Cancelled.REQUESTED),
    "a claim, then a cancel of many flags it": some_are_told(cancels_many, CancelledMany(0, 1)),
    "a claim that rolls back, then a cancel": Waits(
        pending_task, claims, cancels, Cancelled.CANCELLED, "completed CANCELLED", end="rollback"
    ),
    "a cancel, then a success": after_a_cancel(Event.SUCCEED, State.SUCCEEDED),
    "a cancel, then a failure": after_a_cancel(Event.FAIL, State.CANCELLED),
    "a cancel, then a retry": after_a_cancel(Event.RETRY, State.CANCELLED),
    "a cancel, then a snooze": after_a_cancel(Event.SNOOZE, State.CANCELLED),
    "a cancel, then a skip": after_a_cancel(Event.SKIP, State.SKIPPED),
    "a cancel that rolls back, then a failure": Waits(
        claimed_task, cancels, fails, State.FAILED, "error FAILED, 1 failures", end="rollback"
    ),
    "a success, then a cancel": Waits(
        claimed_task, succeeds, cancels, Cancelled.ALREADY_OVER, "completed SUCCEEDED"
    ),
    "a failure, then a cancel": Waits(
        claimed_task, settles(Event.FAIL), cancels, Cancelled.ALREADY_OVER
    ),
    "a retry, then a cancel moves the pending row": Waits(
        claimed_task,
        settles(Event.RETRY, wait=LEASE),
        cancels,
        Cancelled.CANCELLED,
        "completed CANCELLED",
    ),
    "a rescue, then a settle changes nothing": Waits(
        over, rescues, succeeds, None, "pending PENDING, 1 crashes", passing=(in_a_group(),)
    ),
    "a rescue that rolls back, then a settle wins": Waits(
        over, rescues, succeeds, State.SUCCEEDED, end="rollback"
    ),
    "a renewal, then a settle": Waits(
        claimed_task, renews, succeeds, State.SUCCEEDED, passing=(in_a_group(),)
    ),
    "a settle, then a release moves nothing": Waits(
        claimed_task, succeeds, releases_for_sure, {}, "completed SUCCEEDED", passing=(releases,)
    ),
    "a release, then a settle changes nothing": Waits(
        claimed_task, releases, fails, None, "pending PENDING"
    ),
    "a cancel, then a release ends cancelled": Waits(
        claimed_task, cancels, releases_for_sure, {"it": State.CANCELLED}, "completed CANCELLED"
    ),
    # people
    "a requeue of a failure, then another": Waits(
        finished, requeues, requeues, Requeued.STILL_PENDING, "pending PENDING"
    ),
    "a requeue of a success, then another": Waits(
        succeeded, requeues, requeues, Requeued.STILL_PENDING, "pending PENDING"
    ),
    "a requeue of a failure that rolls back, then another": Waits(
        finished, requeues, requeues, Requeued.REQUEUED, "pending PENDING", end="rollback"
    ),
    "a requeue of a success that rolls back, then another": Waits(
        succeeded, requeues, requeues, Requeued.REQUEUED, "pending PENDING", end="rollback"
    ),
    "a success, then an amend": amends_too_late(succeeds, "completed SUCCEEDED"),
    "a retry, then an amend": amends_too_late(retries, "pending PENDING"),
    "a release, then an amend": amends_too_late(releases, "pending PENDING"),
    "a burial, then an amend": amends_too_late(buries, "pending PENDING, 1 crashes"),
    "an amend, then a retry keeps it": Waits(
        over,
        amends,
        retries,
        State.PENDING,
        "pending PENDING, amended",
        passing=(in_a_group(Event.RETRY), rescues, renews),
    ),
    "a cancel, then an amend": Waits(
        claimed_task, cancels, amends, True, "pending RUNNING, told to stop, amended"
    ),
    "a pause that rolls back, then another": Waits(
        pending_task, pauses, pauses, True, end="rollback"
    ),
    "somebody disables what runs, then it succeeds": Waits(
        over, disables, succeeds, State.SUCCEEDED, passing=(in_a_group(), rescues)
    ),
    "a park, then a cancel": Waits(
        disabled, parks, cancels, Cancelled.CANCELLED, "completed CANCELLED", passing=(sweeps,)
    ),
    "the end of a key's holder, then its next producer": Waits(
        keyed, succeeds, creates_the_next_of_its_key, (True, False)
    ),
    "the end of a key's holder that rolls back, then its next producer": Waits(
        keyed, succeeds, creates_the_next_of_its_key, (False, True), end="rollback"
    ),
    "two who let it go": Waits(held, lets_go, lets_go, []),
    "a cancel, then run now": Waits(delayed, cancels, runs_now, []),
    "a sweep, then a hold": Waits(disabled, sweeps, holds, []),
    **{
        f"a claim, then a {action}": Waits(
            pending_task, claims, does(action), [], "pending RUNNING"
        )
        for action in ACTIONS
    },
    **{
        f"a cancel, then a {action}": Waits(
            pending_task, cancels, does(action), [], "completed CANCELLED"
        )
        for action in ACTIONS
    },
}


@pytest.mark.parametrize("case", WAITS.values(), ids=WAITS)
def test_the_second_waits_for_the_first(engine: Engine, pair: Pair, case: Waits) -> None:
    a, b = pair
    task = committed(a, case.given)
    case.first(a, task)
    for verb in case.passing:
        assert not verb(b, task)
    waiting = blocked(engine, b, a, lambda c: case.second(c, task))
    getattr(a, case.end)()
    assert plain(waiting.result(), id_of(task)) == case.told
    b.commit()
    assert case.stands in (None, stands(a, id_of(task)))


class Passes(NamedTuple):
    """The first is open, the second waits for nobody: what it says before and after the end."""

    given: Given
    first: Verb
    second: Verb
    before: Any
    after: Any
    stands: str | None = None
    end: str = "commit"


PASSES: dict[str, Passes] = {
    "a cancel, then a claim": Passes(pending_task, cancels, claims, [], [], "completed CANCELLED"),
    "a cancel that rolls back, then a claim": Passes(
        pending_task, cancels, claims, [], ["it"], end="rollback"
    ),
    "a settle, then a rescue": Passes(over, succeeds, rescues, {}, {}, "completed SUCCEEDED"),
    "a settle, then a renewal": Passes(claimed_task, succeeds, renews, [], []),
    "a renewal, then a rescue": Passes(over, renews, rescues, {}, {}),
    "a rescue, then a renewal": Passes(over, rescues, renews, [], [], "pending PENDING, 1 crashes"),
    "a cancel, then a renewal, and a look that finds it": Passes(
        claimed_task, cancels, hears, ([], []), (["it"], ["it"])
    ),
    "a claim, then a sweep": Passes(pending_task, both(claims, disables), sweeps, {}, {}),
    "a sweep, then a claim": Passes(disabled, sweeps, claims, [], []),
    "a park, then a claim": Passes(pending_task, parks, claims, [], ["it"]),
    # people
    "a failure, then a requeue": Passes(
        claimed_task, fails, requeues, Requeued.STILL_PENDING, Requeued.REQUEUED
    ),
    "a rescue to the error pool, then a requeue": Passes(
        crashed_often, buries, requeues, Requeued.STILL_PENDING, Requeued.REQUEUED
    ),
    "a requeue, then a cancel sees the old state": Passes(
        finished, requeues, cancels, Cancelled.ALREADY_OVER, Cancelled.CANCELLED
    ),
    "a resume, then a claim": Passes(in_a_paused_queue, resumes, claims, [], ["it"]),
    "a hold, then a claim": Passes(pending_task, holds, claims, [], []),
    "the end of a hold, then a claim": Passes(held, lets_go, claims, [], ["it"]),
    "a hold, then a sweep": Passes(disabled, holds, sweeps, {}, {}, "pending PENDING, held"),
    **{
        f"a {action} that rolls back, then a claim": Passes(
            pending_task, does(action), claims, [], ["it"], end="rollback"
        )
        for action in ACTIONS
    },
}


@pytest.mark.parametrize("case", PASSES.values(), ids=PASSES)
def test_the_second_passes_by_the_first(pair: Pair, case: Passes) -> None:
    a, b = pair
    task = committed(a, case.given)
    case.first(a, task)
    assert plain(case.second(b, task), id_of(task)) == case.before
    b.rollback()
    getattr(a, case.end)()
    assert plain(case.second(b, task), id_of(task)) == case.after
    assert case.stands in (None, stands(b, id_of(task)))


class Rechecks(NamedTuple):
    """The first has read and locked nothing yet when the second commits; it looks again."""

    given: Given
    first: Verb
    second: Verb
    told: Any
    """What the first says."""
    stands: str | None = None
    """The task, after both."""


def gives_back(connection: Connection, task: int) -> None:
    """It is due from the release on, and that is after the instant of who has read it before."""
    releases(connection, claimed_task(connection, task))


def claims_by(way: Claims) -> Verb:
    return lambda connection, task: claim(connection, [task], claimer(), uuid4(), way)


def claims_what_is_next(connection: Connection, task: int) -> Any:
    return claim_next(connection, ["default"], 9, claimer(), uuid4())


RECHECKS: dict[str, Rechecks] = {
    "a claim finds that another took it": Rechecks(
        pending_task, claims_by(Claims.UNGATED), claims, [], "pending RUNNING"
    ),
    "an unhindered claim finds that another took it": Rechecks(
        pending_task, claims_by(Claims.UNHINDERED), claims, [], "pending RUNNING"
    ),
    "a claim of what is next finds that another took it": Rechecks(
        pending_task, claims_what_is_next, claims, []
    ),
    "a claim finds it given back, and due later": Rechecks(
        pending_task, claims, gives_back, [], "pending PENDING"
    ),
    "a claim finds it cancelled": Rechecks(pending_task, claims, cancels, []),
    "a claim finds it disabled": Rechecks(pending_task, claims, disables, []),
    "a rescue finds it settled": Rechecks(over, rescues, succeeds, {}, "completed SUCCEEDED"),
    "a rescue finds it renewed": Rechecks(over, rescues, renews, {}, "pending RUNNING"),
    "a sweep finds it enabled and claimed": Rechecks(
        disabled, sweeps, both(enables, claims), {}, "pending RUNNING"
    ),
    "a park finds it claimed": Rechecks(pending_task, parks, claims, None, "pending RUNNING"),
}


@pytest.mark.parametrize("case", RECHECKS.values(), ids=RECHECKS)
def test_the_first_rechecks_what_changed(engine: Engine, pair: Pair, case: Rechecks) -> None:
    a, b = pair
    task = committed(a, case.given)
    with gate(engine) as stop:
        half_way = stop(b, lambda c: case.first(c, task))
        committed(a, case.second, task)
    assert plain(half_way.result(), id_of(task)) == case.told
    b.commit()
    assert case.stands in (None, stands(a, id_of(task)))
    assert row_of(a, id_of(task)) is None or row_of(a, id_of(task)).attempt <= 1
    assert count(a, "task_attempt") == 0


def test_claim_then_claim_before_the_commit_the_second_skips_the_row(pair: Pair) -> None:
    a, b = pair
    mine, free = (committed(a, pending_task) for _ in range(2))
    assert take(a, [mine]) == [mine]
    assert take(b, [mine, free]) == [free]


def test_an_open_cancel_of_a_member_lets_its_group_settle_the_others(pair: Pair) -> None:
    a, b = pair
    tasks = [committed(a, claimed_task) for _ in range(3)]
    cancel(a, tasks[1].task_id)
    moved = settle_group(b, [ending(t) for t in tasks])
    assert moved.keys() == {tasks[0].task_id, tasks[2].task_id}
    assert still_held(b, [t.fence for t in tasks]) == {tasks[1].task_id}


def test_a_group_settle_re_checks_what_a_cancel_changed(engine: Engine, pair: Pair) -> None:
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


@pytest.mark.parametrize(
    ("end", "told", "low_is"),
    [
        (
            lambda c, *runs: settle_group(c, list(map(failing, runs))),
            "already over",
            "error FAILED",
        ),
        (lambda c, *runs: release(c, [t.fence for t in runs]), "cancelled", "completed CANCELLED"),
    ],
    ids=["settle", "release"],
)
def test_cancels_high_then_low_meet_a_group_without_deadlock(
    engine: Engine, pair: Pair, end: Callable[..., dict], told: str, low_is: str
) -> None:
    a, b = pair
    low, high = (committed(a, claimed_task) for _ in range(2))
    cancel(a, high.task_id)
    assert end(b, low, high).keys() == {low.task_id}
    waiting = blocked(engine, a, b, lambda c: cancel(c, low.task_id))
    b.commit()
    assert waiting.result() == told
    a.commit()
    assert end(b, high).keys() == {high.task_id}
    assert pool_of_task(b, high.task_id) == "completed CANCELLED"
    assert pool_of_task(b, low.task_id) == low_is


def test_two_cancels_of_many_lock_the_rows_in_one_order(engine: Engine, pair: Pair) -> None:
    a, b = pair
    for n in range(6):
        committed(a, pending_task, biz_key=("x", "y")[n % 2])
    assert cancel_many(a, name=None, biz_key="x").cancelled == 3
    waiting = blocked(engine, b, a, lambda c: cancel_many(c, name="t", biz_key=None))
    assert cancel_many(a, name="t", biz_key="x") == CancelledMany(0, 0)
    a.commit()
    assert waiting.result() == CancelledMany(cancelled=3, requested=0)


def test_cancel_many_waits_for_a_low_row_and_holds_none_above(engine: Engine, pair: Pair) -> None:
    a, b = pair
    low, high = (committed(a, pending_task) for _ in range(2))
    cancel(a, low)
    waiting = blocked(engine, b, a, lambda c: cancel_many(c, name="t", biz_key=None))
    assert cancel(a, high) is Cancelled.CANCELLED
    a.commit()
    assert waiting.result() == CancelledMany(0, 0)


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


def test_after_a_rescue_and_a_second_run_only_the_newest_can_write(pair: Pair) -> None:
    a, b = pair
    stale = committed(a, claimed_task, lease=OVER)
    committed(a, rescue)
    a.exec_driver_sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    newest = committed(a, claimed_task, stale.task_id)
    assert settle_one(b, ending(stale)) is None
    assert release(b, [stale.fence]).keys() == set()
    assert renew(b, [stale.fence], LEASE) == frozenset()
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


def test_a_settle_is_open_then_the_renewal_passes_by(pair: Pair) -> None:
    a, b = pair
    settling, other = (committed(a, claimed_task) for _ in range(2))
    settle_one(a, ending(settling))
    renewed = renew(b, [settling.fence, other.fence], LEASE)
    assert renewed == {other.task_id}


@pytest.mark.parametrize("event", [Event.SUCCEED, Event.RETRY])
def test_a_settle_commits_then_the_renewal_changes_nothing(pair: Pair, event: Event) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    committed(a, settle_one, ending(task, event))
    before = row_of(a, task.task_id)
    assert renew(b, [task.fence], LEASE) == frozenset()
    assert row_of(b, task.task_id) == before


def test_a_failed_commit_was_none_then_the_release_takes_the_row_uncharged(pair: Pair) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    settle_one(a, failing(task))
    a.rollback()
    assert release(b, [task.fence], block=True).keys() == {task.task_id}
    assert row_of(b, task.task_id).failures == 0


def test_the_token_of_an_open_claim_releases_nothing_until_its_commit(pair: Pair) -> None:
    a, b = pair
    task_id, token = committed(a, pending_task), uuid4()
    claim(a, [task_id], claimer(), token)
    assert release_token(b, token) == set()
    a.commit()
    assert release_token(b, token) == {task_id}


def test_a_requeue_waits_for_its_keys_producer_and_is_refused(engine: Engine, pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, finished, Event.FAIL, unique_key="k")
    holder = pending_task(a, unique_key="k")
    waiting = blocked(engine, b, a, lambda c: requeue(c, task_id))
    a.commit()
    with pytest.raises(Exception, match=f"taken by task {holder}"):
        waiting.result()
    b.rollback()
    assert pool_of_task(a, task_id) == "error FAILED"


def test_a_cancel_of_a_disabled_task_is_open_then_the_sweep_passes_by(pair: Pair) -> None:
    a, b = pair
    held, free = (committed(a, pending_task, enabled=False) for _ in range(2))
    cancel(a, held)
    assert sweep(b, [held, free]) == {free: State.SKIPPED}


def test_a_claim_is_open_then_park_passes_by_and_the_run_keeps_its_row(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    take(a, [task_id])
    park_tasks(b, [task_id], unknown("late"), timedelta(seconds=15))
    b.commit()
    a.commit()
    row = row_of(b, task_id)
    assert (row.state, row.parked) == ("RUNNING", None)


def found(connection: Connection) -> list[int]:
    return [i for rows in find_due(connection, {"default": 10}) for i in rows.ids]


def test_an_open_requeue_is_claimed_by_nobody_and_a_late_run_writes_nothing(pair: Pair) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    committed(a, settle_one, failing(task))
    requeue(a, task.task_id)
    assert take(b, [task.task_id]) == []
    assert settle_one(b, ending(task)) is None
    a.commit()
    assert settle_one(b, ending(task)) is None
    assert buries(b, task) == {}
    assert take(b, [task.task_id]) == [task.task_id]


def test_an_open_pause_stops_no_claim_and_runs_end_after_its_commit(pair: Pair) -> None:
    a, b = pair
    early, late = (committed(a, pending_task) for _ in range(2))
    running = committed(a, claimed_task)
    pause(a, "default")
    assert take(b, [early]) == [early]
    a.commit()
    assert take(b, [late]) == []
    assert settle_one(b, ending(running)) is State.SUCCEEDED


def test_two_sweeps_and_a_park_meet_and_the_task_is_moved_once(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, enabled=False)
    assert sweep(a, [task_id]) == {task_id: State.SKIPPED}
    assert sweep(b, [task_id]) == {}
    park_tasks(b, [task_id], unknown("late"), SOON)
    b.commit()
    a.commit()
    assert pool_of_task(b, task_id) == "completed SKIPPED"


@pytest.mark.parametrize("action", ACTIONS)
def test_a_cancel_waits_for_a_verb(engine: Engine, pair: Pair, action: BulkAction) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    before = row_of(a, task_id).due_at
    does(action)(a, task_id)
    waiting = blocked(engine, b, a, lambda c: cancel(c, task_id))
    a.commit()
    assert waiting.result() is Cancelled.CANCELLED
    row = row_of(b, task_id, "task_completed")
    assert (row.due_at == before) == (action is not BulkAction.RESCHEDULE)


def test_a_hold_waits_for_run_now_and_keeps_the_new_date(engine: Engine, pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, delay="1h")
    runs_now(a, task_id)
    became = row_of(a, task_id).due_at
    waiting = blocked(engine, b, a, lambda c: holds(c, task_id))
    a.commit()
    assert waiting.result() == [task_id]
    assert row_of(b, task_id).held_due_at == became


def test_a_scan_has_found_it_before_the_hold_then_its_message_claims_nothing(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    assert found(b) == [task_id]
    b.rollback()
    committed(a, holds, task_id)
    assert found(b) == []
    assert take(b, [task_id]) == []
