"""Workers: one heartbeat row per child."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine

from tasks_app.pool.runs.heartbeats import live_workers, prune, remove_heartbeat, write_heartbeat
from tests.factory import count
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WITHIN = timedelta(seconds=30)


def say(connection: Connection, owner: str = "w1", now=NOON, **changes) -> None:
    values = {"node": "host", "queues": ["q"], "handlers": ["a", "b"], "running": []}
    write_heartbeat(connection, owner=owner, now=now, **{**values, **changes})


def test_a_child_that_was_heard_of_is_alive(connection: Connection) -> None:
    running = [{"id": 7, "name": "a", "seconds": 1.5, "note": "é"}]

    say(connection, queues=["q", "r"], threads=4, running=running)

    (worker,) = live_workers(connection, WITHIN, now=NOON)
    assert (worker.owner, worker.node) == ("w1", "host")
    assert (worker.queues, worker.handlers) == (("q", "r"), ("a", "b"))
    assert (worker.threads, worker.running) == (4, running)
    assert (worker.started_at, worker.seen_at) == (NOON, NOON)


def test_a_second_beat_tells_what_runs_now_and_keeps_the_start(connection: Connection) -> None:
    say(connection)
    say(connection, now=NOON + timedelta(seconds=5), running=[{"id": 1}])

    (worker,) = live_workers(connection, WITHIN, now=NOON)
    assert worker.running == [{"id": 1}]
    assert (worker.started_at, worker.seen_at) == (NOON, NOON + timedelta(seconds=5))


def test_a_child_that_was_not_heard_of_for_that_time_is_not_alive(connection: Connection) -> None:
    say(connection)

    assert live_workers(connection, WITHIN, now=NOON + WITHIN) == []
    assert len(live_workers(connection, WITHIN, now=NOON + WITHIN - timedelta(microseconds=1))) == 1


@pytest.mark.parametrize(
    ("note", "kept"), [("a\x00b", "a\ufffdb"), ("a\ud800b", "a?b"), ("é\\u0000", "é\\u0000")]
)
def test_a_note_that_no_column_accepts_does_not_stop_the_heartbeat(
    connection: Connection, note: str, kept: str
) -> None:
    say(connection, running=[{"id": 1, "fraction": 0.5, "note": note}])

    (worker,) = live_workers(connection, WITHIN, now=NOON)
    assert worker.running == [{"id": 1, "fraction": 0.5, "note": kept}]


def test_children_are_listed_by_owner(connection: Connection) -> None:
    for owner in ("b", "a", "c"):
        say(connection, owner)

    assert [worker.owner for worker in live_workers(connection, WITHIN, now=NOON)] == [
        "a",
        "b",
        "c",
    ]


def test_a_child_that_leaves_is_off_the_list_and_may_leave_twice(connection: Connection) -> None:
    say(connection, "a")
    say(connection, "b")

    remove_heartbeat(connection, "a")
    remove_heartbeat(connection, "a")

    assert [worker.owner for worker in live_workers(connection, WITHIN, now=NOON)] == ["b"]


def test_only_children_that_nobody_heard_of_for_long_are_forgotten(connection: Connection) -> None:
    say(connection, "old")
    say(connection, "new", now=NOON + timedelta(seconds=1))

    prune(connection, timedelta(hours=1), now=NOON + timedelta(hours=1, seconds=1))

    assert count(connection, "task_worker") == 1
    assert [w.owner for w in live_workers(connection, timedelta(days=1), now=NOON)] == ["new"]


def test_a_beat_is_open_then_the_prune_of_another_child_does_not_wait(engine: Engine) -> None:
    with two(engine) as (a, b):
        say(a, "old")
        a.commit()
        say(a, "alive", now=NOON + timedelta(days=1))

        prune(b, timedelta(hours=1), now=NOON + timedelta(days=1))

        assert count(b, "task_worker") == 0
