"""What the counters say of a time, of names and of queues."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.statistics.read import (
    Failing,
    Grain,
    Wanted,
    history,
    minutes_not_rolled_up,
    most_failing,
    run_histograms,
    slowest,
)
from tasks_app.pool.statistics.roll_up import roll_up
from tests.pool.statistics.counted import KEPT, NOON, part, put

HOUR = Wanted(Grain.MINUTE, timedelta(hours=1))
NOW = NOON + timedelta(minutes=59)


def fill(connection: Connection) -> None:
    for minute in (0, 10, 57):
        at = NOON + timedelta(minutes=minute)
        put(
            connection,
            f"a{minute}",
            *(part(at, 4), part(at, 2, "slow", ms=300), part(at, 1, "slow", CountedOutcome.FAILED)),
            part(at, 3, "bad", CountedOutcome.RETRIED),
        )
        roll_up(connection, None, KEPT, now=at + timedelta(minutes=2))


def test_sums_by_minute_and_outcome(connection: Connection) -> None:
    fill(connection)
    found = history(connection, HOUR, now=NOW)
    assert [(p.at, p.outcome, p.number) for p in found[:3]] == [
        (NOON, CountedOutcome.DONE, 6),
        (NOON, CountedOutcome.FAILED, 1),
        (NOON, CountedOutcome.RETRIED, 3),
    ]
    assert found[0].run_ms == 4 * 3 + 2 * 300
    assert len(found) == 9


def test_what_is_asked_for(connection: Connection) -> None:
    fill(connection)
    only = HOUR._replace(name="slow", queue="q", outcomes=[CountedOutcome.FAILED])
    assert [p.number for p in history(connection, only, now=NOW)] == [1, 1, 1]
    late = HOUR._replace(within=timedelta(minutes=5))
    assert {p.at for p in history(connection, late, now=NOW)} == {NOON + timedelta(minutes=57)}
    assert history(connection, HOUR._replace(queue="other"), now=NOW) == []
    (hour, *_) = history(connection, HOUR._replace(grain=Grain.HOUR), now=NOW)
    assert (hour.at, hour.number) == (NOON, 18)


def test_minutes_that_are_not_rolled_up_yet(connection: Connection) -> None:
    fill(connection)
    assert minutes_not_rolled_up(connection, HOUR) == []
    put(connection, "b", part(NOON + timedelta(minutes=59), 8))
    assert [(p.outcome, p.number) for p in minutes_not_rolled_up(connection, HOUR)] == [
        (CountedOutcome.DONE, 8)
    ]


def test_percentiles(connection: Connection) -> None:
    fill(connection)
    (every,) = run_histograms(connection, HOUR, now=NOW)
    assert (sum(every.waits), sum(every.runs)) == (18, 18)
    assert every.ran_ms(0.5) == 3
    assert {t.key for t in run_histograms(connection, HOUR, by="name", now=NOW)} == {"t", "slow"}
    assert run_histograms(connection, HOUR._replace(name="bad"), now=NOW) == []


def test_the_slowest_and_the_failing(connection: Connection) -> None:
    fill(connection)
    assert [s.name for s in slowest(connection, HOUR, now=NOW)] == ["slow", "t"]
    assert slowest(connection, HOUR, now=NOW)[0].mean_ms == 300
    found = most_failing(connection, HOUR, now=NOW)
    assert found == [Failing("slow", 3, 0, 6), Failing("bad", 0, 9, 0)]
    assert found[0].ratio == 1 / 3
