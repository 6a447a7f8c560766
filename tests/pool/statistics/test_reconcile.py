"""The counters of an hour are raised to what the pools know, and never lowered."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.retention import add_partition, partitions
from tasks_app.pool.statistics.roll_up import _PROBE, DAY, HOUR, _first_block, reconcile, roll_up
from tests.pool.statistics.counted import KEPT, NOON, numbers, part, put

_OVER = text("""
    INSERT INTO task_completed (id, name, queue, state, due_at, started_at, finished_at, run_ms)
    SELECT n, 't', 'q', 'SUCCEEDED', x.at - interval '2 s', x.at - interval '1 s', x.at, 5
    FROM generate_series(CAST(:first AS int), :last) AS n
    CROSS JOIN LATERAL (SELECT CAST(:at AS timestamptz) + n * interval '1 s') AS x(at)
""")


def over(connection: Connection, first: int, number: int, minutes: int) -> None:
    """Successes from so many minutes after noon on, one a second."""
    at = NOON + timedelta(minutes=minutes) - timedelta(seconds=first)
    connection.execute(_OVER, {"first": first, "last": first + number - 1, "at": at})


@pytest.fixture(params=["in a partition of the day", "without one"])
def pool(connection: Connection, request: pytest.FixtureRequest) -> Connection:
    if "in" in request.param.split():
        add_partition(connection, NOON.replace(hour=0))
    return connection


def test_a_lost_interval_is_counted_again(pool: Connection) -> None:
    over(pool, 1, 700, -30)  # before the hour
    over(pool, 1000, 600, 10)
    over(pool, 2000, 50, 70)  # after it
    put(pool, "a", part(NOON, 590))
    roll_up(pool, None, KEPT, now=NOON + timedelta(minutes=3))
    assert reconcile(pool, NOON) == 10
    # What was counted as below 4 ms stays so, though the pool has longer times.
    expected = ("t", 600, 600_000, 3_000, [0, 0, 590, *[0] * 7, 10], [0, 0, 590, 10])
    assert numbers(pool, HOUR, "name, number, wait_ms, run_ms, waits, runs") == [expected]
    assert numbers(pool, HOUR, "exact") == [(True,)]
    assert numbers(pool, DAY) == [("t", 600)]
    assert reconcile(pool, NOON) == 0


def test_a_requeued_task_stays_counted(pool: Connection) -> None:
    over(pool, 1, 5, 10)
    put(pool, "a", part(NOON, 8))
    roll_up(pool, None, KEPT, now=NOON + timedelta(minutes=3))
    assert reconcile(pool, NOON) == 0
    assert numbers(pool, HOUR, "number, exact") == [(8, False)]


def test_failures_retries_and_rescues(connection: Connection) -> None:
    at = {"at": NOON + timedelta(minutes=5)}
    connection.execute(
        text("""
        INSERT INTO task_error (id, name, queue, state, finished_at)
            SELECT n, 'bad', 'q', 'FAILED', :at FROM generate_series(1, 3) n
        """),
        at,
    )
    over(connection, 10, 1, 6)
    connection.execute(text("INSERT INTO task_pending (id, name, queue) VALUES (11, 'w', 'q')"))
    connection.execute(
        text("""
        INSERT INTO task_attempt (task_id, attempt, event, kind, message, ended_at) VALUES
            (1, 1, 'retry', 'E', '', :at), (1, 2, 'fail', 'E', '', :at),
            (2, 1, 'rescue', 'E', '', :at), (10, 1, 'retry', 'E', '', :at),
            (11, 1, 'rescue', 'E', '', :at), (99, 1, 'retry', 'E', '', :at)
        """),
        at,
    )
    assert reconcile(connection, NOON) == 3 + 1 + 3
    assert sorted(numbers(connection, HOUR, "name, outcome, number")) == [
        ("bad", CountedOutcome.FAILED, 3),  # the rescue that ended one is no other outcome
        ("bad", CountedOutcome.RETRIED, 1),
        ("t", CountedOutcome.DONE, 1),
        ("t", CountedOutcome.RETRIED, 1),
        ("w", CountedOutcome.RESCUED, 1),
    ]


def test_only_the_end_of_a_day_is_read(connection: Connection) -> None:
    midnight = NOON.replace(hour=0)
    add_partition(connection, midnight)
    over(connection, 1, 43_000, -12 * 60)  # up to noon
    day = f"task_completed_p{midnight:%Y%m%d}"
    blocks = connection.execute(text(f"SELECT pg_relation_size('{day}') / 8192")).scalar_one()
    (partition,) = [p for p in partitions(connection)[0] if p.name == day]
    first = _first_block(connection, partition, NOON - timedelta(minutes=30))
    left = text(f"SELECT count(*) FROM {day} WHERE finished_at >= :since AND ctid < '({first},0)'")
    assert connection.execute(left, {"since": NOON - timedelta(minutes=30)}).scalar() == 0
    assert first > blocks * 0.9
    values = {"day": midnight, "until": midnight + timedelta(days=1), "block": f"({first},0)"}
    plan = " ".join(connection.execute(text(f"EXPLAIN {_PROBE.text}"), values).scalars())
    assert f"Tid Range Scan on {day}" in plan
