"""Groups: each end of a member is counted once, by whatever way, and the last one calls."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DatabaseError, DBAPIError

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import TasksError
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool import task_groups
from tasks_app.pool.dispatch.set_aside import sweep
from tasks_app.pool.runs import settle
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release, rescue_claims, rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.task_groups import PAGE, prune_groups
from tasks_app.pool.tasks import cancel as cancel_of_plans_of_groups
from tasks_app.pool.tasks.cancel import Cancelled, cancel, cancel_these
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tasks_app.runtime.api.groups import create_group
from tests.factory import LEASE, claimed_task, claimer, count, ending, pool_of_task, row_of, succeed
from tests.pool.database import Ask, Verb, statistics
from tests.pool.interleave import blocked, two
from tests.pool.runs.racing import (
    FILL,
    GROUP,
    PAGES_A_ROW,
    RUNNING,
    STEPS_A_ROW,
    WAITING,
    last_word,
)
from tests.pool.runs.racing import some_outcome as ending_of_plans_of_groups

CAUSE = Cause("ValueError", "no")
THEN, ELSE = NewTask("then", {"x": 1}), NewTask("else", {"x": 2})


def group(connection: Connection, members: int = 2, **options: Any):
    options = {"then": THEN, "on_failure": ELSE, **options}
    return create_group(connection, [NewTask("t") for _ in range(members)], **options)


def progress(connection: Connection, made) -> tuple[int, int, str | None]:
    found = task_groups.get_group(connection, made.id)
    assert found is not None
    return found.succeeded, found.failed, found.outcome


def called(connection: Connection, made) -> str | None:
    row = row_of(connection, made.callback_id)
    return None if row is None else row.name


def by_group(connection: Connection, task, event: Event = Event.SUCCEED) -> None:
    settlement = ending(task, event, cause=None if event is Event.SUCCEED else CAUSE)
    assert len(settle_group(connection, [settlement])) == 1


def by_one(connection: Connection, task, event: Event = Event.SUCCEED) -> None:
    assert settle_one(connection, ending(task, event, cause=CAUSE)) is not None


def with_effects(connection: Connection, task, event: Event = Event.SUCCEED) -> None:
    assert event is Event.SUCCEED
    connection.execute(text("SELECT 1"))  # begins the transaction for SQLAlchemy, too
    assert succeed(connection, ending(task))


@pytest.mark.parametrize("settle", [by_group, by_one, with_effects])
def test_the_last_success_calls_then(connection: Connection, settle) -> None:
    made = group(connection)
    first, second = (claimed_task(connection, task_id) for task_id in made.task_ids)
    settle(connection, first)
    assert progress(connection, made) == (1, 0, None)
    assert called(connection, made) is None
    settle(connection, second)
    assert progress(connection, made) == (2, 0, "SUCCEEDED")
    assert called(connection, made) == "then"


@pytest.mark.parametrize("settle", [by_group, by_one])
@pytest.mark.parametrize(
    ("event", "good"), [(Event.SKIP, True), (Event.FAIL, False), (Event.CANCEL, False)]
)
def test_other_ends_count_as_they_say(connection: Connection, settle, event, good) -> None:
    made = group(connection)
    first, second = (claimed_task(connection, task_id) for task_id in made.task_ids)
    settle(connection, first, event)
    settle(connection, second)
    assert called(connection, made) == ("then" if good else "else")


@pytest.mark.parametrize("event", [Event.RETRY, Event.SNOOZE])
def test_what_comes_back_has_not_ended(connection: Connection, event: Event) -> None:
    made = group(connection, 1)
    by_group(connection, claimed_task(connection, made.task_ids[0]), event)
    assert progress(connection, made) == (0, 0, None)


def test_a_callback_is_the_task_that_was_given(connection: Connection) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    options = {
        "queue": "q",
        "priority": 2,
        "biz_key": "order:1",
        "order_key": "o",
        "limit_key": ["l", 't:"\\7'],
        "weight": 7,
        "locks": ["r", 's:"\\7'],
        "fair_key": "f",
        "headers": {"trace": "a"},
        "run_at": soon,
        "retry": "5s,30s",
        "timeout": 3,
        "hard_timeout": 4,
        "expires_at": soon + timedelta(hours=1),
        "order_policy": "skips",
    }
    (made_by_hand,) = create_group(
        connection,
        [NewTask("then", {"big": 2**63 - 1, "text": 'ä"\\'}, options)],  # type: ignore[arg-type]
    ).task_ids
    made = group(
        connection,
        1,
        then=NewTask("then", {"big": 2**63 - 1, "text": 'ä"\\'}, options),  # type: ignore[arg-type]
    )

    by_group(connection, claimed_task(connection, made.task_ids[0]))

    callback = row_of(connection, made.callback_id)
    assert callback.headers == {"trace": "a", "group_id": made.id, "succeeded": 1, "failed": 0}
    own = {"id", "headers", "batch_id", "idempotency_key", "created_at"}
    expected, found = row_of(connection, made_by_hand)._asdict(), callback._asdict()
    assert {k: v for k, v in found.items() if k not in own} == {
        k: v for k, v in expected.items() if k not in own
    }


def test_the_callback_waits_from_the_call_on(connection: Connection) -> None:
    made = group(connection, 1, then=NewTask("then", options={"delay": "1h"}))
    task = claimed_task(connection, made.task_ids[0])
    noon = datetime.now(UTC) + timedelta(days=1)
    settle_group(connection, [ending(task)], now=noon)
    callback = row_of(connection, made.callback_id)
    assert (callback.created_at, callback.due_at) == (noon, noon + timedelta(hours=1))


def test_a_group_of_none_calls_at_once(connection: Connection) -> None:
    made = group(connection, 0)
    assert called(connection, made) == "then"
    assert progress(connection, made) == (0, 0, "SUCCEEDED")


def test_a_group_may_call_nobody(connection: Connection) -> None:
    made = group(connection, 1, then=None, on_failure=None)
    by_group(connection, claimed_task(connection, made.task_ids[0]))
    assert made.callback_id is None
    assert progress(connection, made) == (1, 0, "SUCCEEDED")
    assert count(connection, "task_pending") == 0


def test_enough_call_before_all_have_ended_and_more_is_uncounted(connection: Connection) -> None:
    made = group(connection, 3, enough=2)
    tasks = [claimed_task(connection, task_id) for task_id in made.task_ids]
    by_group(connection, tasks[0], Event.FAIL)
    by_group(connection, tasks[1])
    assert called(connection, made) is None
    by_group(connection, tasks[2])
    assert called(connection, made) == "then"


def test_what_ends_after_the_call_is_not_counted(connection: Connection) -> None:
    made = group(connection, 2, enough=1)
    tasks = [claimed_task(connection, task_id) for task_id in made.task_ids]
    by_group(connection, tasks[0])
    connection.execute(text("DELETE FROM task_pending WHERE name = 'then'"))
    by_group(connection, tasks[1], Event.FAIL)
    assert progress(connection, made) == (1, 0, "SUCCEEDED")
    assert called(connection, made) is None
    assert pool_of_task(connection, tasks[1].task_id) == "error FAILED"


def test_too_few_successes_are_a_failure_when_all_have_ended(connection: Connection) -> None:
    made = group(connection, 2, enough=1)
    for task_id in made.task_ids:
        by_group(connection, claimed_task(connection, task_id), Event.FAIL)
    assert called(connection, made) == "else"


def test_the_first_failure_calls_if_it_shall(connection: Connection) -> None:
    made = group(connection, 3, fail_fast=True)
    by_group(connection, claimed_task(connection, made.task_ids[0]), Event.FAIL)
    assert called(connection, made) == "else"


def test_many_members_of_many_groups_end_in_one_statement(connection: Connection) -> None:
    groups = [group(connection, 5) for _ in range(4)]
    ids = [task_id for made in groups for task_id in made.task_ids]
    plain = claimed_task(connection)
    tasks = [claimed_task(connection, task_id) for task_id in ids]
    events = [Event.FAIL if n == 7 else Event.SUCCEED for n in range(len(tasks))]

    done = settle_group(
        connection,
        [ending(plain)] + [ending(t, e, cause=CAUSE) for t, e in zip(tasks, events, strict=True)],
    )

    assert len(done) == len(tasks) + 1
    assert [called(connection, made) for made in groups] == ["then", "else", "then", "then"]
    assert [row_of(connection, m.callback_id).headers["succeeded"] for m in groups] == [5, 4, 5, 5]


def test_successes_of_plain_tasks_and_members_end_together(connection: Connection) -> None:
    made = group(connection)
    tasks = [claimed_task(connection, task_id) for task_id in made.task_ids]
    tasks.insert(1, claimed_task(connection))
    done = settle_group(connection, [ending(task) for task in tasks])
    assert set(done.values()) == {State.SUCCEEDED}
    assert len(done) == 3
    assert called(connection, made) == "then"


def cancelled(connection: Connection, task_id: int) -> None:
    assert cancel(connection, task_id) is Cancelled.CANCELLED


def cancelled_with_others(connection: Connection, task_id: int) -> None:
    assert cancel_these(connection, [task_id]).cancelled == 1


def expired(connection: Connection, task_id: int) -> None:
    past = datetime.now(UTC) - timedelta(minutes=1)
    connection.execute(
        text("UPDATE task_pending SET expires_at = :at WHERE id = :id"), {"at": past, "id": task_id}
    )
    assert sweep(connection, [task_id]) == {task_id: State.EXPIRED}


def released(connection: Connection, task_id: int) -> None:
    task = claimed_task(connection, task_id)
    cancel(connection, task_id)
    assert release(connection, [task.fence]) == {task_id: State.CANCELLED}


def released_alone(connection: Connection, task_id: int) -> None:
    task = claimed_task(connection, task_id)
    cancel(connection, task_id)
    assert release(connection, [task.fence], block=True) == {task_id: State.CANCELLED}


def rescued(connection: Connection, task_id: int) -> None:
    task = claimed_task(connection, task_id)
    done = rescue_claims(connection, [task.fence], lease=LEASE, max_crashes=1)
    assert done == {task_id: State.FAILED}


def rescued_from_a_lease_that_is_over(connection: Connection, task_id: int) -> None:
    claimed_task(connection, task_id)
    late = datetime.now(UTC) + timedelta(hours=1)
    done = rescue_expired(connection, lease=LEASE, max_crashes=1, now=late)
    assert done == {task_id: State.FAILED}


@pytest.mark.parametrize(
    "end",
    [
        cancelled,
        cancelled_with_others,
        expired,
        released,
        released_alone,
        rescued,
        rescued_from_a_lease_that_is_over,
    ],
)
def test_no_way_out_of_the_pool_is_forgotten(connection: Connection, end) -> None:
    made = group(connection, 1)
    end(connection, made.task_ids[0])
    assert progress(connection, made) == (0, 1, "FAILED")
    assert called(connection, made) == "else"


def test_a_disabled_member_is_skipped_which_is_no_failure(connection: Connection) -> None:
    made = create_group(connection, [NewTask("t", options={"enabled": False})], then=THEN)
    sweep(connection, made.task_ids)
    assert called(connection, made) == "then"


def test_requeue_takes_a_failure_back(connection: Connection) -> None:
    made = group(connection)
    first, second = made.task_ids
    by_group(connection, claimed_task(connection, first), Event.FAIL)
    assert requeue(connection, first) is Requeued.REQUEUED
    assert progress(connection, made) == (0, 0, None)
    by_group(connection, claimed_task(connection, second))
    by_group(connection, claimed_task(connection, first))
    assert called(connection, made) == "then"


def test_requeue_takes_a_success_back(connection: Connection) -> None:
    made = group(connection)
    by_group(connection, claimed_task(connection, made.task_ids[0]))
    requeue(connection, made.task_ids[0])
    assert progress(connection, made) == (0, 0, None)


def test_a_group_that_failed_is_open_again_once_a_failed_member_is_requeued(
    connection: Connection,
) -> None:
    made = group(connection)
    first, second = made.task_ids
    by_group(connection, claimed_task(connection, first), Event.FAIL)
    by_group(connection, claimed_task(connection, second))
    assert called(connection, made) == "else"

    requeue(connection, first)
    again = reopened(connection, made)
    assert progress(connection, again) == (1, 0, None)
    assert called(connection, again) is None
    by_group(connection, claimed_task(connection, first))

    assert progress(connection, again) == (2, 0, "SUCCEEDED")
    assert (called(connection, made), called(connection, again)) == ("else", "then")


def test_with_fail_fast_it_is_open_again_once_no_failure_is_left(connection: Connection) -> None:
    made = group(connection, 3, fail_fast=True)
    tasks = [claimed_task(connection, task_id) for task_id in made.task_ids]
    by_group(connection, tasks[0], Event.FAIL)
    by_group(connection, tasks[1], Event.FAIL)
    by_group(connection, tasks[2])
    assert progress(connection, made) == (1, 2, "FAILED")

    requeue(connection, tasks[0].task_id)
    assert progress(connection, made) == (1, 1, "FAILED")
    requeue(connection, tasks[1].task_id)
    assert progress(connection, made) == (1, 0, None)
    by_group(connection, claimed_task(connection, tasks[0].task_id))
    by_group(connection, claimed_task(connection, tasks[1].task_id))
    assert called(connection, reopened(connection, made)) == "then"


def test_requeue_changes_nothing_of_a_group_that_succeeded(connection: Connection) -> None:
    made = group(connection, 1)
    by_group(connection, claimed_task(connection, made.task_ids[0]))
    requeue(connection, made.task_ids[0])
    assert reopened(connection, made) == made
    by_group(connection, claimed_task(connection, made.task_ids[0]), Event.FAIL)
    assert progress(connection, made) == (1, 0, "SUCCEEDED")
    assert count(connection, "task_pending") == 1  # the callback of the first end


def reopened(connection: Connection, made):
    """Return the group with the callback that it has now."""
    found = task_groups.get_group(connection, made.id)
    assert found is not None
    return replace(made, callback_id=found.callback_id)


def test_an_outer_group_waits_for_a_reopened_inner_one(connection: Connection) -> None:
    outer = group(connection, 1, then=NewTask("outer"))
    inner = group(connection, 1, part_of=outer.id)
    by_group(connection, claimed_task(connection, outer.task_ids[0]))
    by_group(connection, claimed_task(connection, inner.task_ids[0]), Event.FAIL)
    by_group(connection, claimed_task(connection, inner.callback_id, name="else"), Event.FAIL)
    assert called(connection, outer) == "else"

    requeue(connection, inner.task_ids[0])  # it reopens both
    requeue(connection, inner.callback_id)
    by_group(connection, claimed_task(connection, inner.task_ids[0]))
    again = reopened(connection, outer)
    assert progress(connection, again) == (1, 0, None)
    by_group(connection, claimed_task(connection, inner.callback_id, name="else"))
    callback = reopened(connection, inner).callback_id
    by_group(connection, claimed_task(connection, callback, name="then"))
    assert progress(connection, again) == (3, 0, "SUCCEEDED")
    assert called(connection, again) == "outer"


def test_an_outer_group_waits_for_the_callback_of_an_inner_one(connection: Connection) -> None:
    outer = group(connection, 1, then=NewTask("outer"))
    inner = group(connection, 2, part_of=outer.id)

    by_group(connection, claimed_task(connection, outer.task_ids[0]))
    for task_id in inner.task_ids:
        by_group(connection, claimed_task(connection, task_id))
    assert called(connection, outer) is None
    by_group(connection, claimed_task(connection, inner.callback_id, name="then"))

    assert called(connection, outer) == "outer"
    ended = [
        e.task_id
        for e in task_groups.member_results(connection, task_groups.get_group(connection, outer.id))
    ]
    assert ended == [*outer.task_ids, inner.callback_id]


def test_what_came_of_members_in_their_order(connection: Connection) -> None:
    made = group(connection, PAGE + 3)
    tasks = [claimed_task(connection, task_id) for task_id in made.task_ids[PAGE - 2 : PAGE + 2]]
    for n in (3, 0, 2):
        settle_group(connection, [ending(tasks[n], result=f"{n}")])
    by_group(connection, tasks[1], Event.FAIL)

    ended = list(task_groups.member_results(connection, task_groups.get_group(connection, made.id)))

    assert [e.task_id for e in ended] == made.task_ids
    pending, failed, *others = ended[PAGE - 3], ended[PAGE - 1], *ended[PAGE:]
    assert (pending.state, failed.state) == ("PENDING", "FAILED")
    assert failed.error == "ValueError: no"
    assert [(e.state, e.result) for e in (ended[PAGE - 2], *others)] == [
        *(("SUCCEEDED", n) for n in (0, 2, 3)), ("PENDING", None),
    ]  # fmt: skip


def test_groups_that_were_over_long_ago_are_forgotten(connection: Connection) -> None:
    over, goes_on = group(connection, 0), group(connection, 1)
    later = datetime.now(UTC) + timedelta(days=2)
    assert prune_groups(connection, timedelta(days=3), 10, now=later) == 0
    assert prune_groups(connection, timedelta(days=1), 10, now=later) == 1
    assert task_groups.get_group(connection, over.id) is None
    assert task_groups.get_group(connection, goes_on.id) is not None


def test_a_member_whose_group_was_forgotten_ends(connection: Connection) -> None:
    made = group(connection, 3)
    tasks = [claimed_task(connection, task_id) for task_id in made.task_ids]
    connection.execute(text("DELETE FROM task_group"))
    for task, settle_by in zip(tasks, (by_group, by_one, with_effects), strict=True):
        settle_by(connection, task)
    assert count(connection, "task_completed") == 3


# -- races
def prepared(engine: Engine, members: int = 2, **options: Any):
    with engine.begin() as connection:
        made = group(connection, members, **options)
        tasks = [claimed_task(connection, task_id) for task_id in made.task_ids]
    return made, tasks


def outcome_of(engine: Engine, made):
    with engine.connect() as connection:
        return progress(connection, made), called(connection, made)


@contextmanager
def nobody_in_the_way(*connections: Connection) -> Iterator[None]:
    """What is done inside waits for nobody, and is in no deadlock."""
    for connection in connections:
        connection.execute(text("SET LOCAL lock_timeout = '3s'"))
    try:
        yield
    except (DBAPIError, psycopg.Error) as error:
        pytest.fail(f"somebody was in the way: {error}")


def ends(place: int, event: Event = Event.SUCCEED, by: Any = by_one) -> Callable[..., Any]:
    return lambda connection, tasks: by(connection, tasks[place], event)


def requeues(connection: Connection, tasks: list) -> Requeued:
    return requeue(connection, tasks[0].task_id)


COMPLETE, OPEN = ((2, 0, "SUCCEEDED"), "then"), ((1, 0, None), None)
MEETINGS: dict[str, tuple] = {
    "the last two": (None, ends(0), "commit", ends(1), COMPLETE),
    "the last two with effects": (
        *(None, ends(0, by=with_effects), "commit", ends(1, by=with_effects), COMPLETE),
    ),
    "an end that is rolled back": (None, ends(0), "rollback", ends(1), OPEN),
    "an end with effects that is rolled back": (
        *(None, ends(0, by=with_effects), "rollback", ends(1, by=with_effects), OPEN),
    ),
    "a requeue that is late": (
        *(ends(0, Event.FAIL), ends(1), "commit", requeues, ((1, 0, None), "else")),
    ),
    "a requeue that is early": (ends(0, Event.FAIL), requeues, "commit", ends(1), OPEN),
}
"""What was before, what the first does and how it ends, what the second does, what is counted."""


@pytest.mark.parametrize("case", MEETINGS.values(), ids=MEETINGS)
def test_two_that_meet_at_a_group_are_counted_in_turn(engine: Engine, case: tuple) -> None:
    before, first, end, second, outcome = case
    made, tasks = prepared(engine)
    if before:
        with engine.begin() as connection:
            before(connection, tasks)
    with two(engine) as (a, b):
        first(a, tasks)
        waiting = blocked(engine, b, a, lambda connection: second(connection, tasks))
        getattr(a, end)()
        assert waiting.result() is (Requeued.REQUEUED if second is requeues else None)
        b.commit()
    assert outcome_of(engine, made) == outcome


def test_a_group_settle_waits_for_nobody_and_leaves_members_of_a_busy_group(engine: Engine) -> None:
    made, tasks = prepared(engine)
    with engine.begin() as connection:
        plain = claimed_task(connection)
    with two(engine) as (a, b):
        by_one(a, tasks[0])
        with nobody_in_the_way(b):
            done = settle_group(b, [ending(plain), ending(tasks[1])])
            failed = settle_group(b, [ending(tasks[1], Event.FAIL, cause=CAUSE)])
        b.commit()
        assert (list(done), failed) == ([plain.task_id], {})
        a.commit()
        assert list(settle_group(b, [ending(tasks[1])])) == [tasks[1].task_id]
        b.commit()

    assert outcome_of(engine, made) == ((2, 0, "SUCCEEDED"), "then")


def test_an_open_cancellation_holds_up_members_and_no_other(engine: Engine) -> None:
    made, tasks = prepared(engine, 3)
    with engine.begin() as connection:
        release(connection, [tasks[0].fence])
    with two(engine) as (a, b):
        assert cancel(a, tasks[0].task_id) is Cancelled.CANCELLED
        other = blocked(engine, b, a, lambda connection: with_effects(connection, tasks[1]))
        with nobody_in_the_way(a):  # the other waits for the group and does not hold its row
            assert cancel(a, tasks[1].task_id) is Cancelled.REQUESTED
            assert cancel(a, tasks[2].task_id) is Cancelled.REQUESTED
            a.commit()
            other.result()
        b.commit()

    assert outcome_of(engine, made)[0] == (1, 1, None)


def test_a_run_that_is_told_to_stop_does_not_stand_in_the_way(engine: Engine) -> None:
    made, tasks = prepared(engine, 2)
    with engine.begin() as connection:
        release(connection, [tasks[0].fence])
    with two(engine) as (a, b):
        assert cancel(a, tasks[1].task_id) is Cancelled.REQUESTED
        other = blocked(engine, b, a, lambda connection: by_one(connection, tasks[1]))
        with nobody_in_the_way(a):
            assert cancel(a, tasks[0].task_id) is Cancelled.CANCELLED
            a.commit()
            other.result()
        b.commit()

    assert outcome_of(engine, made) == ((1, 1, "FAILED"), "else")


def test_an_inner_group_that_comes_first_is_waited_for(engine: Engine) -> None:
    outer, tasks = prepared(engine, 1)
    with two(engine) as (a, b):
        inner = group(a, 0, part_of=outer.id)
        last = blocked(engine, b, a, lambda connection: by_one(connection, tasks[0]))
        a.commit()
        last.result()
        b.commit()
    assert outcome_of(engine, outer) == ((1, 0, None), None)
    assert outcome_of(engine, inner) == ((0, 0, "SUCCEEDED"), "then")


def test_an_inner_group_that_comes_late_is_refused(engine: Engine) -> None:
    outer, tasks = prepared(engine, 1)
    with two(engine) as (a, b):
        by_one(a, tasks[0])
        late = blocked(engine, b, a, lambda connection: group(connection, 1, part_of=outer.id))
        a.commit()
        with pytest.raises(TasksError, match="is over or unknown"):
            late.result()
        b.rollback()

    assert outcome_of(engine, outer) == ((1, 0, "SUCCEEDED"), "then")
    with engine.connect() as connection:
        assert count(connection, "task_group") == 1


def test_a_member_requeued_while_another_fails_the_group_calls_nobody(engine: Engine) -> None:
    made, tasks = prepared(engine, 3, fail_fast=True)
    with engine.begin() as connection:
        by_one(connection, tasks[0])
    with two(engine) as (a, b):
        by_one(a, tasks[1], Event.FAIL)
        again = blocked(engine, b, a, lambda connection: requeue(connection, tasks[0].task_id))
        a.commit()
        assert again.result() is Requeued.REQUEUED
        b.commit()
    with engine.begin() as connection:
        by_one(connection, claimed_task(connection, tasks[0].task_id))
        by_one(connection, tasks[2])

    assert outcome_of(engine, made) == ((2, 1, "FAILED"), "else")
    with engine.connect() as connection:
        assert count(connection, "task_pending") == 1


THREADS, STEPS = 6, 120
GROUPS, MEMBERS = 8, 15
THEN_AT_RANDOM, ELSE_AT_RANDOM = NewTask("then"), NewTask("else")
IN_THE_WAY = ("40P01", "55P03")
"""Deadlocks of those who cancel members of several groups, and long waits."""
COUNTED = text("""
    SELECT g.id, g.total, g.succeeded, g.failed, g.outcome, g.callback_id,
        count(*) FILTER (WHERE a.state IN ('SUCCEEDED', 'SKIPPED')) AS good,
        count(*) FILTER (WHERE a.state IN ('FAILED', 'CANCELLED', 'EXPIRED')) AS bad
    FROM task_group g LEFT JOIN (
        SELECT batch_id, state FROM task_pending UNION ALL
        SELECT batch_id, state FROM task_completed UNION ALL
        SELECT batch_id, state FROM task_error) AS a ON a.batch_id = g.id
    GROUP BY g.id ORDER BY g.id
""")
CALLED = text("SELECT id, headers FROM task_pending WHERE name IN ('then', 'else')")


class Actor:
    """One thread: a worker, an operator and a reaper in turn."""

    def __init__(self, engine: Engine, ids: list[int], seed: int, *, requeues: bool) -> None:
        self._engine, self._ids, self._dice = engine, ids, random.Random(seed)
        self._requeues = requeues
        self.refused = 0

    def act(self) -> None:
        for _ in range(STEPS):
            with self._engine.connect() as connection:
                connection.execute(text("SET LOCAL lock_timeout = '5s'"))
                try:
                    for _ in range(self._dice.choice((1, 1, 2))):
                        self._step(connection)
                except (DBAPIError, psycopg.Error) as error:
                    state = getattr(getattr(error, "orig", error), "sqlstate", None)
                    if state not in IN_THE_WAY:
                        raise
                    self.refused += 1
                    connection.rollback()
                    continue
                if self._dice.random() < 0.15:
                    connection.rollback()
                else:
                    connection.commit()

    def _step(self, connection: Connection) -> None:
        some = sorted(self._dice.sample(self._ids, self._dice.choice((1, 1, 5, 20))))
        match self._dice.randrange(10):
            case 0:
                cancel(connection, some[0])
            case 1:
                cancel_these(connection, some[:2])
            case 2 | 3 if self._requeues:
                requeue(connection, some[0])
            case _:
                self._run(connection, some)

    def _run(self, connection: Connection, some: list[int]) -> None:
        """Claims and ends are one transaction here, so that nobody has to find open runs again."""
        tasks = claim(connection, some, claimer("t"), uuid4())
        for task in tasks[:1]:
            match self._dice.randrange(5):
                case 0:
                    assert succeed(connection, ending(task))
                case 1:
                    rescue_claims(connection, [task.fence], lease=LEASE, max_crashes=1)
                case 2:
                    settle_one(connection, ending(task, Event.FAIL, cause=CAUSE))
                case _:
                    settle_group(connection, [ending(task)])
        left = [
            ending(task, event, cause=CAUSE, wait=timedelta(0))
            for task in tasks[1:]
            for event in self._dice.choices((Event.SUCCEED, Event.FAIL, Event.SKIP, Event.SNOOZE))
        ]
        settle_group(connection, left)
        release(connection, [task.fence for task in tasks])


@pytest.mark.test_all
@pytest.mark.parametrize("requeues", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_counted_is_what_there_is(engine: Engine, seed: int, requeues: bool) -> None:
    ids: list[int] = []
    for number in range(GROUPS):
        options = [{}, {}, {"enough": 10}, {"fail_fast": True}][number % 4]
        with engine.begin() as connection:
            members = [NewTask("t") for _ in range(MEMBERS)]
            made = create_group(
                connection, members, then=THEN_AT_RANDOM, on_failure=ELSE_AT_RANDOM, **options
            )
        ids += made.task_ids
    actors = [Actor(engine, ids, 100 * seed + n, requeues=requeues) for n in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(actor.act) for actor in actors]:
            done.result()
    agree(engine, exact=not requeues)

    while True:  # what is left ends well
        with engine.begin() as connection:
            tasks = claim(connection, ids, claimer("t"), uuid4())
            assert len(settle_group(connection, [ending(task) for task in tasks])) == len(tasks)
        if not tasks:
            break
    assert None not in agree(engine, exact=not requeues)
    assert sum(actor.refused for actor in actors) < STEPS


def agree(engine: Engine, *, exact: bool) -> list[str | None]:
    """Compare groups with their members; return the outcomes.

    One that succeeded counts no more, and its members may be requeued unless ``exact``. One that
    failed may have been reopened: then it has called before, and told of a failure.
    """
    with engine.connect() as connection:
        groups = connection.execute(COUNTED).all()
        called = dict(connection.execute(CALLED).all())
    for group in groups:
        counted, there = (group.succeeded, group.failed), (group.good, group.bad)
        told = called.pop(group.callback_id, None)
        assert (told is None) == (group.outcome is None)
        if told is not None:
            assert told["group_id"] == group.id
        if group.outcome != State.SUCCEEDED:
            assert counted == there
        else:
            assert (told["succeeded"], told["failed"]) == counted
            assert sum(counted) <= group.total
            if exact:
                assert group.succeeded <= group.good
                assert group.failed <= group.bad
    assert all(told["failed"] for told in called.values()), "a task that no group has called"
    assert not (exact and called)
    return [group.outcome for group in groups]


GROUPED = 8_000
FULL = (
    FILL
    + f"""
INSERT INTO task_group (id, total, failed, on_failure, callback_id)
    SELECT n, 2, 1, '{{"name": "else", "queue": "q", "priority": 5, "payload": {{}}, "delay": 0,
        "enabled": true, "retry_level": 0}}', 1000000 + n
    FROM generate_series(1, {GROUPED}) AS n;
INSERT INTO task_group_ids SELECT n, 0, ARRAY[n] FROM generate_series(1, {GROUPED}) AS n;
UPDATE task_pending SET batch_id = id % {GROUPED} + 1 WHERE id >= {RUNNING.start} OR id % 20 = 1;
"""
)


def lock(connection, number: int):
    return connection.execute(
        cancel_of_plans_of_groups._LOCK_THESE, {"ids": list(WAITING[:number])}
    ).all()


def member_succeeds(connection, _: int):
    with suppress(DatabaseError), connection.begin_nested():  # of an empty pool: it has no claim
        return connection.exec_driver_sql(*last_word(", counts"))


VERBS: dict[str, tuple[Verb, int]] = {
    "settle": (
        lambda c, n: settle._moved(
            c, settle._GROUP, list(map(ending_of_plans_of_groups, RUNNING[:n])), None
        ),
        GROUP,
    ),
    "settle one": (
        lambda c, _: settle._moved(c, settle.ONE, [ending_of_plans_of_groups(RUNNING[0])], None),
        1,
    ),
    "succeed": (member_succeeds, 1),
    "lock to cancel": (lock, GROUP),
    "cancel": (
        lambda c, n: c.execute(
            cancel_of_plans_of_groups._MOVE(), {"ids": list(WAITING[:n]), "now": None}
        ),
        GROUP,
    ),
    "get": (lambda c, _: task_groups.get_group(c, 7), 1),
    "page": (lambda c, _: list(task_groups.member_pages(c, 7)), 1),
    "take back": (
        lambda c, _: c.execute(task_groups._TAKE_BACK, {"id": 7, "succeeded": False}),
        1,
    ),
}


@statistics
@pytest.mark.parametrize("name", VERBS)
def test_a_statement_reads_about_what_it_is_asked_for(ask: Ask, name: str) -> None:
    number = VERBS[name][1]
    plan = ask(name)
    assert plan.whole == ()
    assert plan.rows <= 3 * STEPS_A_ROW * number + 300
    assert plan.buffers <= 3 * PAGES_A_ROW * number + 1_000
