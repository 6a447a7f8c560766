"""Totals never fall: neither by roll-ups, nor by retention, nor as more names come."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import accumulate

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.statistics import OTHER, CountedOutcome
from tasks_app.pool.retention import add_partition
from tasks_app.pool.statistics.roll_up import CountRetention, reconcile, roll_up
from tasks_app.pool.statistics.totals import keep_totals, totals
from tests.pool.statistics.counted import KEPT, NOON, part, put
from tests.pool.statistics.test_reconcile import over

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
Key = tuple[str, str, CountedOutcome]


def told(connection: Connection) -> dict[Key, int]:
    return {(each.name, each.queue, each.outcome): each.number for each in totals(connection)}


def growing(connection: Connection) -> dict[Key, list[int]]:
    """Return of each key what only grows: number, sums, and what is below each bound."""
    return {
        (t.name, t.queue, t.outcome): [
            *(t.number, t.wait_ms, t.run_ms),
            *accumulate([*t.waits, *[0] * (25 - len(t.waits))]),
            *accumulate([*t.runs, *[0] * (25 - len(t.runs))]),
        ]
        for t in totals(connection)
    }


def test_what_is_not_rolled_up_yet_is_in_the_total(connection: Connection) -> None:
    put(connection, "a", part(NOON, 5))
    roll_up(connection, None, KEPT, now=NOON + 2 * MINUTE)
    put(connection, "a", part(NOON + 3 * MINUTE, 2))
    assert told(connection) == {("t", "q", CountedOutcome.DONE): 7}


@pytest.mark.test_all
@pytest.mark.parametrize("days", [1, 2, 3, 730])
def test_no_total_falls_while_days_go_by(connection: Connection, days: int) -> None:
    rng, since, counted = random.Random(days), None, 0
    kept = CountRetention(timedelta(hours=3), timedelta(hours=30), days * DAY)
    before: dict[Key, list[int]] = {}
    for step in range(60):
        at = NOON + step * timedelta(hours=5)
        counted += (number := rng.randint(1, 9))
        put(connection, f"slot {step}", part(at, number, ms=rng.choice((3, 2))))
        for later in (MINUTE, 3 * MINUTE, timedelta(hours=3)):
            if later > MINUTE:
                since = roll_up(connection, since, kept, now=at + later).until
            now = growing(connection)
            assert all(
                all(a <= b for a, b in zip(old, now[key], strict=True))
                for key, old in before.items()
            )
            before = now
    assert told(connection) == {("t", "q", CountedOutcome.DONE): counted}
    span = text("SELECT count(*) FROM task_count WHERE span = 1440")
    assert connection.execute(span).scalar_one() <= days + 1


def test_an_hour_that_is_raised_lowers_no_bucket(connection: Connection) -> None:
    add_partition(connection, NOON.replace(hour=0))
    over(connection, 1, 600, 10)  # each waited for a second
    put(connection, "a", part(NOON, 590))
    roll_up(connection, None, KEPT, now=NOON + 3 * MINUTE)
    before = growing(connection)
    assert reconcile(connection, NOON) == 10
    after = growing(connection)
    (key,) = before
    assert all(a <= b for a, b in zip(before[key], after[key], strict=True))
    assert after[key][0] == after[key][-1] == 600

    put(connection, "b", part(NOON, 20))  # late: it is in neither
    roll_up(connection, None, KEPT, now=NOON + 5 * MINUTE)
    last = growing(connection)
    assert all(a <= b for a, b in zip(after[key], last[key], strict=True))
    assert last[key][0] == last[key][-1] == 610


def test_whoever_comes_first_keeps_a_total_of_its_own(connection: Connection) -> None:
    put(connection, "a", part(NOON, 1, "a"), part(NOON, 2, "b"))
    roll_up(connection, None, KEPT, now=NOON + 2 * MINUTE)
    assert set(told(connection)) == {(n, "q", CountedOutcome.DONE) for n in "ab"}
    connection.execute(text("DELETE FROM task_total"))
    keep_totals(connection, KEPT.days, most=1, now=NOON)
    other = (OTHER, OTHER, CountedOutcome.DONE)
    assert told(connection) == {("b", "q", CountedOutcome.DONE): 2, other: 1}
    keep_totals(connection, KEPT.days, most=1, now=NOON + 5 * DAY)
    assert told(connection) == {("b", "q", CountedOutcome.DONE): 2, other: 1}


def test_a_name_that_is_new_waits_for_its_roll_up(connection: Connection) -> None:
    put(connection, "a", part(NOON, 1, "a"))
    assert told(connection) == {}
    roll_up(connection, None, KEPT, now=NOON + 2 * MINUTE)
    assert told(connection) == {("a", "q", CountedOutcome.DONE): 1}
