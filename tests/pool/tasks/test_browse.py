"""Browse: a task is found in whichever pool it lies, and nobody is disturbed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.runs.leases import release
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.browse import count_tasks, failed_attempts, find_tasks, get
from tests.factory import claimed_task, ending, pending_task
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)


def finished(connection: Connection, event: Event = Event.SUCCEED, **options) -> int:
    task = claimed_task(connection, now=NOON, **options)
    changes = {"cause": Cause("E", "no")} if event is Event.FAIL else {"result": '{"n": 1}'}
    settle_one(connection, ending(task, event, run_ms=5, **changes), now=LATER)
    return task.task_id


def test_a_pending_task_shows_what_it_is(connection: Connection) -> None:
    task_id = pending_task(
        connection, payload={"a": 1}, headers={"h": 2}, biz_key="b", unique_key="u", now=NOON
    )

    task = get(connection, task_id)

    assert task is not None
    assert (task.id, task.pool, task.state) == (task_id, "pending", State.PENDING)
    assert (task.payload, task.headers) == ({"a": 1}, {"h": 2})
    assert (task.biz_key, task.unique_key, task.due_at) == ("b", "u", NOON)
    assert (task.finished_at, task.result, task.error, task.run_ms) == (None,) * 4


def test_a_running_task_shows_who_runs_it(connection: Connection) -> None:
    task = get(connection, claimed_task(connection, owner="me", now=NOON).task_id)

    assert task is not None
    assert (task.state, task.owner, task.started_at) == (State.RUNNING, "me", NOON)
    assert task.lease_until == NOON + timedelta(seconds=30)


def test_a_finished_task_shows_how_it_ended(connection: Connection) -> None:
    good = get(connection, finished(connection))
    bad = get(connection, finished(connection, Event.FAIL))

    assert good is not None
    assert bad is not None
    assert (good.pool, good.state, good.result) == ("completed", State.SUCCEEDED, {"n": 1})
    assert (bad.pool, bad.state, bad.error) == ("error", State.FAILED, "E: no")
    assert good.finished_at == bad.finished_at == LATER
    assert good.run_ms == bad.run_ms == 5


def test_a_task_that_never_was_is_none(connection: Connection) -> None:
    assert get(connection, 10**15) is None


def test_found_tasks_come_newest_first_and_page_by_page(connection: Connection) -> None:
    ids = [pending_task(connection), finished(connection), finished(connection, Event.FAIL)]

    first = find_tasks(connection, most=2)
    second = find_tasks(connection, most=2, before=first[-1].id)

    assert [t.id for t in first] == [ids[2], ids[1]]
    assert [t.id for t in second] == [ids[0]]


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["c", "b", "a"]),
        ({"name": "a"}, ["a"]),
        ({"queue": "q"}, ["b"]),
        ({"biz_key": "k"}, ["c"]),
        ({"pool": "error"}, ["c"]),
        ({"state": "SUCCEEDED"}, ["b"]),
        ({"pool": "pending", "state": "PENDING"}, ["a"]),
        ({"pool": "pending", "biz_key": "k"}, []),
    ],
)
def test_filters_narrow_what_is_found(connection: Connection, filters, names) -> None:
    pending_task(connection, "a")
    finished(connection, name="b", queue="q")
    finished(connection, Event.FAIL, name="c", biz_key="k")

    assert [t.name for t in find_tasks(connection, **filters)] == names


@pytest.mark.parametrize(
    "payload",
    ['{"x": 1e100000}', '{"x": ' + "[" * 5000 + "]" * 5000 + "}"],
    ids=["number", "nesting"],
)
def test_a_payload_that_nobody_can_read_hides_only_itself(
    connection: Connection, payload: str
) -> None:
    connection.execute(
        text("INSERT INTO task_pending (name, payload) VALUES ('bad', CAST(:p AS jsonb))"),
        {"p": payload},
    )
    pending_task(connection, "good", {"a": 1})

    assert {t.name: t.payload for t in find_tasks(connection)} == {"bad": None, "good": {"a": 1}}


def test_the_history_comes_oldest_first(connection: Connection) -> None:
    task = claimed_task(connection, now=NOON)
    settle_one(connection, ending(task, Event.RETRY, cause=Cause("A", "1")), now=NOON)
    task = claimed_task(connection, task.task_id, now=NOON)
    release(connection, [task.fence], now=NOON)
    task = claimed_task(connection, task.task_id, now=NOON)
    settle_one(connection, ending(task, Event.FAIL, cause=Cause("B", "2", "tb")), now=LATER)

    assert [(a.attempt, a.event, a.kind) for a in failed_attempts(connection, task.task_id)] == [
        (1, "retry", "A"),
        (3, "fail", "B"),
    ]
    assert failed_attempts(connection, 10**15) == []


def test_tasks_are_counted_by_name_queue_and_state(connection: Connection) -> None:
    pending_task(connection, "a", run_at=NOON)
    pending_task(connection, "a", run_at=NOON + timedelta(seconds=5))
    pending_task(connection, "a", queue="q", run_at=LATER + timedelta(seconds=1))
    finished(connection, name="a")
    finished(connection, Event.FAIL, name="b")

    counts = [
        (c.name, c.queue, c.state, c.number, c.oldest_due_at)
        for c in count_tasks(connection, now=LATER)
    ]

    assert counts == [
        ("a", "default", "PENDING", 2, NOON),
        ("a", "default", "SUCCEEDED", 1, None),
        ("a", "q", "PENDING", 1, None),
        ("b", "default", "FAILED", 1, None),
    ]


def test_looking_waits_for_nobody(engine: Engine) -> None:
    with two(engine) as (a, b):
        task = claimed_task(a)
        a.commit()
        settle_one(a, ending(task))

        seen = get(b, task.task_id)

        assert seen is not None
        assert seen.state is State.RUNNING
