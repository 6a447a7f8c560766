"""Settle: each outcome under the fence, alone and in a group, with what is kept of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.event import listen
from sqlalchemy.exc import DataError

from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.runs.leases import release
from tasks_app.pool.runs.settle import settle_group, settle_one, still_held
from tasks_app.pool.tasks.browse import failed_attempts
from tasks_app.pool.tasks.cancel import cancel
from tests.factory import claimed_task, count, ending, pending_task, pool_of_task, row_of
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)
CAUSE = Cause("ValueError", "no", "line 1")


def by_one(connection: Connection, settlement: Settlement, now=None) -> State | None:
    return settle_one(connection, settlement, now=now)


def by_group(connection: Connection, settlement: Settlement, now=None) -> State | None:
    task_id = settlement.fence.task_id
    if settle_group(connection, [settlement], now=now).keys() != {task_id}:
        return None
    return State((pool_of_task(connection, task_id) or "").split()[1])


either_way = pytest.mark.parametrize("settle", [by_one, by_group], ids=["one", "group"])

OUTCOMES = [
    (Event.SUCCEED, State.SUCCEEDED, "completed"),
    (Event.SKIP, State.SKIPPED, "completed"),
    (Event.CANCEL, State.CANCELLED, "completed"),
    (Event.FAIL, State.FAILED, "error"),
    (Event.RETRY, State.PENDING, "pending"),
    (Event.SNOOZE, State.PENDING, "pending"),
]


@either_way
@pytest.mark.parametrize(("event", "state", "pool"), OUTCOMES)
def test_an_outcome_moves_the_row(
    connection: Connection, settle, event: Event, state: State, pool: str
) -> None:
    task = claimed_task(connection)
    assert settle(connection, ending(task, event, cause=CAUSE)) is state
    assert pool_of_task(connection, task.task_id) == f"{pool} {state}"


@either_way
@pytest.mark.parametrize(("event", "otherwise", "_pool"), OUTCOMES)
def test_a_task_that_was_to_be_cancelled_never_comes_back_but_may_have_succeeded(
    connection: Connection, settle, event: Event, otherwise: State, _pool: str
) -> None:
    state = State.CANCELLED if otherwise in {State.FAILED, State.PENDING} else otherwise
    task = claimed_task(connection)
    cancel(connection, task.task_id)
    assert settle(connection, ending(task, event, cause=CAUSE)) is state
    assert pool_of_task(connection, task.task_id) == f"completed {state}"


@either_way
@pytest.mark.parametrize("wrong", ["token", "attempt", "task_id"])
def test_a_stale_fence_changes_nothing(connection: Connection, settle, wrong: str) -> None:
    task = claimed_task(connection)
    stale = {"token": uuid4(), "attempt": 2, "task_id": task.task_id + 1}
    fence = task.fence._replace(**{wrong: stale[wrong]})
    before = row_of(connection, task.task_id)
    assert settle(connection, Settlement(fence, Event.FAIL, 1, 0, cause=CAUSE)) is None
    assert row_of(connection, task.task_id) == before
    assert count(connection, "task_attempt") == 0


@either_way
def test_the_writer_of_an_earlier_attempt_changes_nothing(connection: Connection, settle) -> None:
    stale = claimed_task(connection)
    release(connection, [stale.fence])
    newer = claimed_task(connection, stale.task_id)
    assert settle(connection, ending(stale)) is None
    assert settle(connection, ending(newer)) is State.SUCCEEDED


@either_way
def test_an_outcome_is_settled_once(connection: Connection, settle) -> None:
    task = claimed_task(connection)
    assert settle(connection, ending(task)) is State.SUCCEEDED
    assert settle(connection, ending(task)) is None
    assert pool_of_task(connection, task.task_id) == "completed SUCCEEDED"


@either_way
def test_a_task_that_nobody_runs_cannot_be_settled(connection: Connection, settle) -> None:
    task = claimed_task(connection)
    release(connection, [task.fence])
    assert settle(connection, ending(task)) is None
    assert pool_of_task(connection, task.task_id) == "pending PENDING"


@either_way
def test_a_retry_comes_back_after_its_wait_and_counted(connection: Connection, settle) -> None:
    task = claimed_task(connection, now=NOON)

    settle(
        connection,
        ending(task, Event.RETRY, failures=1, retry_level=2, wait=timedelta(seconds=1.5)),
        LATER,
    )

    row = row_of(connection, task.task_id)
    assert row.due_at == row.scan_at == LATER + timedelta(seconds=1.5)
    assert (row.state, row.attempt, row.failures, row.retry_level) == ("PENDING", 1, 1, 2)
    assert (row.lease_token, row.lease_until, row.owner) == (None, None, None)
    assert row.started_at == NOON


@either_way
def test_a_snooze_without_a_wait_is_due_at_once(connection: Connection, settle) -> None:
    task = claimed_task(connection, now=NOON)
    settle(connection, ending(task, Event.SNOOZE), LATER)
    assert row_of(connection, task.task_id).due_at == LATER


@either_way
@pytest.mark.parametrize(("told", "kept"), [(None, 2), (0, 0), (3, 3)])
def test_crashes_stay_unless_told(
    connection: Connection, settle, told: int | None, kept: int
) -> None:
    task = claimed_task(connection, pending_task(connection, crashes=2))
    settle(connection, ending(task, Event.RETRY, crashes=told))
    assert row_of(connection, task.task_id).crashes == kept


@either_way
@pytest.mark.parametrize("table", ["task_completed", "task_error"])
def test_a_finished_row_keeps_all_that_it_was(connection: Connection, settle, table: str) -> None:
    task_id = pending_task(
        connection,
        payload={"a": [1, None]},
        queue="q",
        priority=3,
        biz_key="order:1",
        unique_key="u",
        max_attempts=9,
        retry="5s,30s",
        timeout=1,
        hard_timeout=2,
        expires_at=LATER,
        headers={"h": 1},
        crashes=1,
        now=NOON,
    )
    task = claimed_task(connection, task_id, now=NOON, owner="me")
    before = row_of(connection, task_id)._mapping
    event = Event.FAIL if table == "task_error" else Event.SUCCEED

    counted = int(event is Event.FAIL)  # a success keeps the row's own numbers

    settle(connection, ending(task, event, failures=counted, retry_level=counted, run_ms=12), LATER)

    after = row_of(connection, task_id, table)._mapping
    changed = {"state", "failures", "retry_level"}
    outcome = {"result", "error", "run_ms", "finished_at", "fingerprint", "changed_at"}
    gone = {
        "changed_at",
        "scan_at",
        "held_due_at",
        "parked",
        "parked_kind",
        "parked_for",
        "lease_token",
        "lease_until",
        "outages",
        "outage_since",
        "waits_for",
        "kill_at",
    }
    assert set(before) - gone == set(after) - outcome
    assert {k: after[k] for k in after if k not in outcome | changed} == {
        k: before[k] for k in before if k not in gone | changed
    }
    assert (after["failures"], after["retry_level"], after["run_ms"]) == (counted, counted, 12)
    assert after["finished_at"] == LATER


@either_way
@pytest.mark.parametrize(
    ("text", "value"), [('{"a": [1, "é"]}', {"a": [1, "é"]}), ("7", 7), ("null", None)]
)
def test_a_result_is_kept(connection: Connection, settle, text: str, value) -> None:
    task = claimed_task(connection)
    settle(connection, ending(task, result=text))
    assert row_of(connection, task.task_id, "task_completed").result == value


@either_way
@pytest.mark.parametrize(
    ("cause", "error"),
    [
        (Cause("ValueError", "no"), "ValueError: no"),
        (Cause("KeyboardInterrupt", ""), "KeyboardInterrupt"),
        (None, None),
    ],
)
def test_the_error_pool_says_why(
    connection: Connection, settle, cause: Cause | None, error: str | None
) -> None:
    task = claimed_task(connection)
    settle(connection, ending(task, Event.FAIL, cause=cause))
    assert row_of(connection, task.task_id, "task_error").error == error


@either_way
@pytest.mark.parametrize("event", [Event.RETRY, Event.FAIL])
def test_a_failed_attempt_leaves_its_history(connection: Connection, settle, event: Event) -> None:
    task = claimed_task(connection, now=NOON, owner="me")
    settle(connection, ending(task, event, cause=CAUSE, run_ms=7), LATER)
    (line,) = failed_attempts(connection, task.task_id)
    assert (line.task_id, line.attempt, line.event) == (task.task_id, 1, event)
    assert (line.kind, line.message, line.traceback) == ("ValueError", "no", "line 1")
    assert (line.owner, line.started_at, line.ended_at) == ("me", NOON, LATER)


@either_way
@pytest.mark.parametrize("event", [Event.SUCCEED, Event.SKIP, Event.CANCEL, Event.SNOOZE])
def test_an_attempt_not_failed_leaves_no_line(connection: Connection, settle, event: Event) -> None:
    settle(connection, ending(claimed_task(connection), event, cause=CAUSE))
    assert count(connection, "task_attempt") == 0


def test_a_failure_that_a_cancellation_covers_stays_in_the_history(connection: Connection) -> None:
    task = claimed_task(connection)
    cancel(connection, task.task_id)
    settle_one(connection, ending(task, Event.RETRY, cause=CAUSE))
    assert [line.event for line in failed_attempts(connection, task.task_id)] == ["retry"]


def test_a_group_of_all_outcomes_goes_each_its_way(connection: Connection) -> None:
    tasks = [claimed_task(connection) for _ in OUTCOMES]
    settlements = [
        ending(task, event, cause=CAUSE, result='{"n": 1}' if event is Event.SUCCEED else None)
        for task, (event, _, _) in zip(tasks, OUTCOMES, strict=True)
    ]
    moved = settle_group(connection, settlements[::-1], now=LATER)
    assert moved.keys() == {task.task_id for task in tasks}
    assert [pool_of_task(connection, task.task_id) for task in tasks] == [
        f"{pool} {state}" for _, state, pool in OUTCOMES
    ]


def test_a_group_keeps_each_members_own_numbers(connection: Connection) -> None:
    tasks = [claimed_task(connection, now=NOON) for _ in range(3)]

    settle_group(
        connection,
        [
            ending(t, Event.RETRY, failures=1, retry_level=n, wait=timedelta(seconds=n))
            for n, t in enumerate(tasks)
        ],
        now=LATER,
    )

    rows = [row_of(connection, t.task_id) for t in tasks]
    assert [r.due_at - LATER for r in rows] == [timedelta(seconds=n) for n in range(3)]
    assert [r.retry_level for r in rows] == [0, 1, 2]


def test_members_whose_fence_holds_are_settled_without_the_others(connection: Connection) -> None:
    good, stale = claimed_task(connection), claimed_task(connection)
    release(connection, [stale.fence])
    assert settle_group(connection, [ending(good), ending(stale)]).keys() == {good.task_id}
    assert pool_of_task(connection, stale.task_id) == "pending PENDING"


def test_an_empty_group_is_no_error(connection: Connection) -> None:
    assert settle_group(connection, []).keys() == set()


def test_of_what_was_settled_or_given_back_nothing_is_held(connection: Connection) -> None:
    settled, released, mine = (claimed_task(connection) for _ in range(3))
    settle_one(connection, ending(settled))
    release(connection, [released.fence])
    held = still_held(connection, [t.fence for t in (settled, released, mine)])
    assert held == {mine.task_id}
    assert still_held(connection, []) == set()


def test_a_result_that_cannot_be_stored_fails_the_group_and_moves_none(engine: Engine) -> None:
    with two(engine) as (a, b):
        tasks: list[ClaimedTask] = [claimed_task(a) for _ in range(2)]
        a.commit()
        with pytest.raises(DataError):
            settle_group(a, [ending(tasks[0]), ending(tasks[1], result="not JSON")])
        a.rollback()
        assert [pool_of_task(b, t.task_id) for t in tasks] == ["pending RUNNING"] * 2


def test_a_settle_and_the_handlers_own_writes_roll_back_together(engine: Engine) -> None:
    with two(engine) as (a, b):
        task = claimed_task(a)
        a.commit()
        pending_task(a, "effect")
        settle_one(a, ending(task))
        a.rollback()
        assert pool_of_task(b, task.task_id) == "pending RUNNING"
        assert count(b) == 1


@either_way
@pytest.mark.parametrize("event", [Event.FAIL, Event.RETRY])
def test_a_failure_has_its_fingerprint(connection: Connection, settle, event: Event) -> None:
    task = claimed_task(connection)
    settle(connection, ending(task, event, cause=CAUSE, failures=1))
    assert connection.execute(
        text("SELECT fingerprint FROM task_attempt UNION ALL SELECT fingerprint FROM task_error")
    ).scalars().all() == [fingerprint_of(CAUSE)] * (2 if event is Event.FAIL else 1)


def test_what_was_locked_for_a_moment_leaves_no_row_either(engine: Engine) -> None:
    """A renewal, say, has the row while successes are forgotten, and not any more behind that."""
    with two(engine) as (ours, other):
        held, free = claimed_task(ours), claimed_task(ours)
        ours.commit()
        lock = text("SELECT FROM task_pending WHERE id = :id FOR UPDATE")
        other.execute(lock, {"id": held.task_id})
        listen(ours, "after_cursor_execute", lambda *_: other.rollback())
        outcomes = [ending(task)._replace(is_kept=False) for task in (held, free)]
        assert settle_group(ours, outcomes) == {free.task_id: State.SUCCEEDED}
        assert settle_group(ours, outcomes[:1]) == {held.task_id: State.SUCCEEDED}
        assert count(ours, "task_completed") == 0
