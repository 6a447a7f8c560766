"""Random verbs in random order: a task lies in one pool, its attempt never falls, fences hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import TERMINAL, TRANSITIONS, Event, State
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release, renew, rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue
from tests.factory import LEASE, claimer, ending, pending_task, unknown

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = text("SELECT id, pool, state, attempt, failures, crashes FROM task_all ORDER BY id")
VERBS = [
    *("claim", "claim", "claim", "renew", "release", "rescue", "cancel", "requeue"),
    *("park", "sweep", "succeed", "fail", "retry", "snooze", "skip"),
]
STEPS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 2), st.integers(0, 40), st.booleans()),
    min_size=10,
    max_size=40,
)
EDGES = {(source, to) for (source, _), to in TRANSITIONS.items()}
# A request to cancel turns each way back into CANCELLED; a rescue may end in the error pool.
EDGES |= {(state, state) for state in State}


def snapshot(connection: Connection) -> dict[int, tuple]:
    rows = connection.execute(ROWS).all()
    assert len({row.id for row in rows}) == len(rows), "a task lies in two pools"
    return {row.id: tuple(row)[1:] for row in rows}


def carry_out(connection: Connection, verb: str, task_id: int, old, now, group: bool) -> None:
    match verb:
        case "claim":
            old += claim(connection, [task_id], claimer(max_attempts=3), uuid4(), now=now)
        case "rescue":
            rescue_expired(connection, lease=LEASE, max_crashes=3, now=now)
        case "cancel":
            cancel(connection, task_id, now=now)
        case "requeue":
            requeue(connection, task_id, now=now)
        case "park":
            park_tasks(connection, [task_id], unknown("paused"), timedelta(seconds=9), now=now)
        case "sweep":
            sweep(connection, [task_id], now=now)
        case _:
            before = snapshot(connection)
            for stale in old[:-1]:
                as_its_owner(connection, verb, stale, now, group)
            assert snapshot(connection) == before, "a stale claim wrote"
            for task in old[-1:]:
                as_its_owner(connection, verb, task, now, group)


def as_its_owner(connection: Connection, verb: str, task, now, group: bool) -> None:
    if verb == "renew":
        renew(connection, [task.fence], LEASE, now=now)
    elif verb == "release":
        release(connection, [task.fence], now=now)
    else:
        settlement = ending(task, Event(verb), wait=timedelta(seconds=5), cause=Cause("E", "no"))
        if group:
            settle_group(connection, [settlement], now=now)
        else:
            settle_one(connection, settlement, now=now)


@pytest.mark.test_all
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_a_task_walks_only_as_the_table_says(connection: Connection, steps) -> None:
    savepoint = connection.begin_nested()
    options = [{}, {"at_most_once": True}, {"expires_at": NOON + timedelta(minutes=2)}]
    ids = [pending_task(connection, now=NOON, **option) for option in options]
    claims: dict[int, list] = {task_id: [] for task_id in ids}
    now, before = NOON, snapshot(connection)

    for verb, which, seconds, group in steps:
        now += timedelta(seconds=seconds)
        mine = claims[ids[which]]
        held = len(mine)
        carry_out(connection, verb, ids[which], mine, now, group)

        after = snapshot(connection)
        assert after.keys() == before.keys(), "a task is lost or was made up"
        for task_id, (_, state, attempt, failures, crashes) in after.items():
            _, old_state, old_attempt, _, old_crashes = before[task_id]
            claimed = verb == "claim" and task_id == ids[which] and len(mine) > held
            assert (State(old_state), State(state)) in EDGES
            assert attempt == old_attempt + claimed, "only a claim raises the attempt"
            assert failures <= attempt
            assert crashes >= old_crashes or verb == "requeue"
            if old_state in TERMINAL and state != old_state:
                assert verb == "requeue"
        before = after
    savepoint.rollback()
