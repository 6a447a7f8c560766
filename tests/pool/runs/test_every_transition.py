"""With the log on ``all``, every edge of the life of a task leaves a line: who, from, to, why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.operations import WAITING, Author, BulkAction, parse_amendment
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import TERMINAL, TRANSITIONS, Event, Pool, State
from tasks_app.pool.dispatch.set_aside import sweep, sweep_all
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.runs.claim import Claims, claim, claim_next
from tasks_app.pool.runs.leases import release, release_token, rescue_claims, rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.tasks.amend import amend, change_payload, spread
from tasks_app.pool.tasks.cancel import cancel, cancel_many, cancel_these
from tasks_app.pool.tasks.requeue import requeue
from tests.factory import LEASE, claimed_task, claimer, ending, pending_task, succeed
from tests.statements import watched

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
ANNA = Author("anna", "the bank asks")
CAUSE = Cause("builtins.ValueError", "no")
LINES = text("""
    SELECT event, from_state, to_state, coalesce(who, owner) AS by, why, detail, attempt, at
    FROM task_transition WHERE task_id = :id ORDER BY at, from_state IS NOT NULL, id
""")


@pytest.fixture(autouse=True)
def _all() -> Iterator[None]:
    LOG.level = Logged.ALL
    yield
    LOG.level = Logged.OFF


def lines(connection: Connection, task_id: int) -> list[Any]:
    return list(connection.execute(LINES, {"id": task_id}).all())


Walk = Callable[[Connection, Event], int]


def walk(given: Callable[[Connection], Any], verb: Callable[[Connection, Any, Event], Any]) -> Walk:
    """What is done with a task: its id if it is pending, its run if it was claimed."""

    def go(connection: Connection, event: Event) -> int:
        task = given(connection)
        assert verb(connection, task, event)
        return int(task if isinstance(task, int) else task.task_id)

    return go


def outcome(task: ClaimedTask, event: Event) -> Settlement:
    return ending(task, event, wait=timedelta(0), cause=CAUSE)


def claimed(connection: Connection) -> ClaimedTask:
    return claimed_task(connection, now=NOON)


def disabled_task(connection: Connection) -> int:
    return pending_task(connection, enabled=False)


def expiring_task(connection: Connection) -> int:
    return pending_task(connection, now=NOON, expires_at=NOON + timedelta(minutes=1))


def named_task(connection: Connection) -> int:
    return pending_task(connection, "of.a.name")


settled = walk(claimed_task, lambda c, task, event: settle_one(c, outcome(task, event)))
in_group = walk(claimed_task, lambda c, task, event: settle_group(c, [outcome(task, event)]))
disabled = walk(disabled_task, lambda c, task_id, _: sweep(c, [task_id]))
expired = walk(expiring_task, lambda c, *_: sweep_all(c, 10, now=LATER))
cancelled = walk(pending_task, lambda c, task_id, _: cancel(c, task_id, by=ANNA))
WALKS: dict[tuple[State, Event], list[Walk]] = {
    (State.PENDING, Event.CLAIM): [
        walk(pending_task, lambda c, task_id, _: claim(c, [task_id], claimer(), uuid4())),
        walk(pending_task, lambda c, *_: claim_next(c, ["default"], 1, claimer(), uuid4())),
        walk(
            pending_task,
            lambda c, task_id, _: claim(c, [task_id], claimer(), uuid4(), Claims.UNHINDERED),
        ),
    ],
    (State.PENDING, Event.SKIP): [disabled],
    (State.PENDING, Event.CANCEL): [
        cancelled,
        walk(named_task, lambda c, *_: cancel_many(c, name="of.a.name", biz_key=None, by=ANNA)),
        walk(pending_task, lambda c, task_id, _: cancel_these(c, [task_id], by=ANNA)),
    ],
    (State.PENDING, Event.EXPIRE): [expired],
    (State.RUNNING, Event.SUCCEED): [
        settled,
        in_group,
        walk(claimed_task, lambda c, task, event: succeed(c, ending(task, event))),
    ],
    **{
        (State.RUNNING, event): [settled, in_group]
        for event in (Event.SKIP, Event.CANCEL, Event.FAIL, Event.RETRY, Event.SNOOZE)
    },
    (State.RUNNING, Event.RELEASE): [
        walk(claimed_task, lambda c, task, _: release(c, [task.fence])),
        walk(claimed_task, lambda c, task, _: release_token(c, task.fence.token)),
    ],
    (State.RUNNING, Event.RESCUE): [
        walk(claimed, lambda c, *_: rescue_expired(c, lease=LEASE, max_crashes=5, now=LATER)),
        walk(
            claimed_task,
            lambda c, task, _: rescue_claims(c, [task.fence], lease=LEASE, max_crashes=5),
        ),
    ],
}
ENDS: dict[State, Callable[[Connection], int]] = {
    State.SUCCEEDED: lambda c: settled(c, Event.SUCCEED),
    State.SKIPPED: lambda c: disabled(c, Event.SKIP),
    State.CANCELLED: lambda c: cancelled(c, Event.CANCEL),
    State.EXPIRED: lambda c: expired(c, Event.EXPIRE),
    State.FAILED: lambda c: settled(c, Event.FAIL),
}


def requeued_from(state: State) -> Walk:
    return walk(ENDS[state], lambda c, task_id, _: requeue(c, task_id, by=ANNA))


WALKS |= {(state, Event.REQUEUE): [requeued_from(state)] for state in TERMINAL}
EACH = [(*edge, walk) for edge, walks in WALKS.items() for walk in walks]


def test_no_edge_is_left_out() -> None:
    assert WALKS.keys() == TRANSITIONS.keys()


@pytest.mark.parametrize(("origin", "event", "walk"), EACH)
def test_every_edge_leaves_a_line(
    connection: Connection, origin: State, event: Event, walk: Walk
) -> None:
    task_id = walk(connection, event)

    told = lines(connection, task_id)
    assert len(told) > 1
    first, last = told[0], told[-1]
    assert (first.event, first.from_state, first.to_state) == ("create", None, "PENDING")
    assert first.by == "producer"
    assert (last.event, last.from_state) == (event, origin)
    assert last.to_state == TRANSITIONS[origin, event]
    if event in {Event.REQUEUE} or (origin, event) == (State.PENDING, Event.CANCEL):
        assert (last.by, last.why) == ANNA
    elif origin is State.RUNNING or event is Event.CLAIM:
        assert last.by == "w1"
    if event in {Event.FAIL, Event.RETRY}:
        assert last.detail == CAUSE.kind
    assert first.at <= last.at


def test_a_line_is_written_once_for_each_move(connection: Connection) -> None:
    late = LATER + timedelta(hours=1)
    task = claimed_task(connection, now=NOON)
    settle_one(connection, ending(task, Event.RETRY, wait=timedelta(0), cause=CAUSE), now=NOON)
    again = claimed_task(connection, task.task_id, now=LATER)
    cancel(connection, again.task_id, by=ANNA, now=LATER)
    settle_one(connection, ending(again, Event.FAIL, cause=CAUSE), now=LATER)
    requeue(connection, again.task_id, by=ANNA, now=late)
    claimed_task(connection, task.task_id, now=late)

    assert [(e.event, e.from_state, e.to_state) for e in lines(connection, task.task_id)] == [
        ("create", None, "PENDING"),
        ("claim", "PENDING", "RUNNING"),
        ("retry", "RUNNING", "PENDING"),
        ("claim", "PENDING", "RUNNING"),
        ("cancel", "RUNNING", "RUNNING"),
        ("fail", "RUNNING", "CANCELLED"),
        ("requeue", "CANCELLED", "PENDING"),
        ("claim", "PENDING", "RUNNING"),
    ]


def test_that_it_was_created_is_told_once(connection: Connection) -> None:
    task_id = cancelled(connection, Event.CANCEL)
    requeue(connection, task_id)
    claimed_task(connection, task_id)
    events = [each.event for each in lines(connection, task_id)]
    assert events == ["create", "cancel", "requeue", "claim"]


WORDS: dict[BulkAction, dict[str, Any]] = {
    BulkAction.RESCHEDULE: {"at": NOON},
    BulkAction.REPRIORITISE: {"to_priority": 0},
    BulkAction.MOVE: {"to_queue": "slow"},
}
BEFORE = {BulkAction.RELEASE: BulkAction.HOLD, BulkAction.ENABLE: BulkAction.DISABLE}


@pytest.mark.parametrize("action", sorted(WAITING))
def test_what_operators_change_leaves_a_line(connection: Connection, action: BulkAction) -> None:
    task_id = pending_task(connection, delay="1h")
    if action in BEFORE:
        amend(connection, BEFORE[action], [task_id])
    amend(connection, action, [task_id], parse_amendment(action, WORDS.get(action, {})), by=ANNA)
    last = lines(connection, task_id)[-1]
    assert (last.event, last.from_state, last.to_state) == (action, "PENDING", "PENDING")
    assert (last.by, last.why) == ANNA
    details = {BulkAction.MOVE: "to queue slow", BulkAction.REPRIORITISE: "to priority 0"}
    assert last.detail == details.get(action)


def test_tasks_that_are_let_go_at_a_rate_and_edits_leave_lines(connection: Connection) -> None:
    waiting, failed = pending_task(connection, delay="1h"), settled(connection, Event.FAIL)
    spread(connection, BulkAction.RUN_NOW, [waiting], timedelta(seconds=1), None, by=ANNA)
    assert change_payload(connection, Pool.PENDING, waiting, "{}", by=ANNA)
    assert change_payload(connection, Pool.ERROR, failed, "{}", by=ANNA)
    assert [(e.event, e.by, e.why) for e in lines(connection, waiting)] == [
        ("run-now", *ANNA),
        ("edit", *ANNA),
    ]
    last = lines(connection, failed)[-1]
    assert (last.event, last.from_state, last.to_state) == ("edit", "FAILED", "FAILED")


def test_who_acts_without_a_name_is_the_role(connection: Connection) -> None:
    task_id = pending_task(connection)
    cancel(connection, task_id)
    role = connection.execute(text("SELECT current_user")).scalar_one()
    assert lines(connection, task_id)[-1].by == role


@pytest.mark.parametrize("level", [Logged.OFF, Logged.FAILURES])
def test_only_all_has_what_operators_do_and_claims(connection: Connection, level: Logged) -> None:
    LOG.level = level
    task = claimed_task(connection)
    requeue(connection, cancelled(connection, Event.CANCEL), by=ANNA)
    assert lines(connection, task.task_id) == []
    assert connection.execute(text("SELECT count(*) FROM task_transition")).scalar_one() == 0


def test_off_sends_no_statement_more(engine: Engine) -> None:
    LOG.level = Logged.OFF
    other = engine.execution_options()
    with watched(other) as seen, other.connect() as connection:
        for _, event, walk in EACH:
            walk(connection, event)
        waiting = pending_task(connection, delay="1h")
        for action in sorted(WAITING):
            amend(connection, action, [waiting], parse_amendment(action, WORDS.get(action, {})))
        spread(connection, BulkAction.RUN_NOW, [waiting], timedelta(seconds=1), None)
        change_payload(connection, Pool.PENDING, waiting, "{}")
        connection.rollback()

    assert len(seen) > 2 * len(EACH)
    assert not [each.sql for each in seen if "task_transition" in each.sql]
