"""Parts become minutes, hours and days; repeated, late and old ones do no harm."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.statistics import MOST_KEYS, OTHER, CountedOutcome
from tasks_app.pool.statistics.parts import add_counts, write_parts
from tasks_app.pool.statistics.roll_up import DAY, HOUR, MINUTE, roll_up
from tests.pool.statistics.counted import KEPT, NOON, numbers, part, put

LATER = NOON + timedelta(minutes=2)


def test_a_total_that_is_written_twice_counts_once(connection: Connection) -> None:
    put(connection, "a", part(NOON, 5))
    put(connection, "a", part(NOON, 7))
    put(connection, "a", part(NOON, 7))
    roll_up(connection, None, KEPT, now=LATER)
    assert numbers(connection, MINUTE) == [("t", 7)]


def test_processes_are_added_up(connection: Connection) -> None:
    put(connection, "a", part(NOON, 5), part(NOON, 2, "u"))
    put(connection, "b", part(NOON, 7, ms=2))
    rolled = roll_up(connection, None, KEPT, now=LATER)
    assert rolled.until == LATER
    for span in (MINUTE, HOUR, DAY):
        assert numbers(connection, span, "name, number, run_ms, runs, waits") == [
            ("t", 12, 29, [0, 0, 12], [0, 0, 12]),
            ("u", 2, 6, [0, 0, 2], [0, 0, 2]),
        ]


def test_an_open_minute_waits(connection: Connection) -> None:
    put(connection, "a", part(NOON, 5))
    roll_up(connection, None, KEPT, now=NOON + timedelta(seconds=89))
    assert numbers(connection, MINUTE) == []
    first = roll_up(connection, None, KEPT, now=NOON + timedelta(seconds=90))
    assert numbers(connection, MINUTE) == [("t", 5)]
    assert roll_up(connection, first.until, KEPT, now=NOON + timedelta(minutes=5)).rows == 0


def test_a_late_part_is_added(connection: Connection) -> None:
    put(connection, "a", part(NOON, 5))
    first = roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=8))
    write_parts(connection, "b", [part(NOON, 4)], now=NOON + timedelta(minutes=9))
    roll_up(connection, first.until, KEPT, now=NOON + timedelta(minutes=10))
    assert [numbers(connection, span) for span in (MINUTE, HOUR, DAY)] == [[("t", 9)]] * 3


def test_no_minute_between_two_roll_ups_is_missed(connection: Connection) -> None:
    since = None
    for minute in range(5):
        put(connection, "a", part(NOON + timedelta(minutes=minute), 1))
        at = NOON + timedelta(minutes=minute, seconds=70)
        since = roll_up(connection, since, KEPT, now=at).until
    roll_up(connection, since, KEPT, now=NOON + timedelta(minutes=7))
    assert len(numbers(connection, MINUTE)) == 5
    assert numbers(connection, HOUR) == [("t", 5)]


def test_parts_that_are_gone_lower_nothing(connection: Connection) -> None:
    put(connection, "a", part(NOON, 5))
    roll_up(connection, None, KEPT, now=LATER)
    connection.execute(text("DELETE FROM task_count_part"))
    put(connection, "b", part(NOON, 1))
    roll_up(connection, None, KEPT, now=LATER)
    assert numbers(connection, MINUTE) == [("t", 5)]


def test_parts_are_kept_for_a_quarter_of_an_hour(connection: Connection) -> None:
    put(connection, "a", part(NOON, 5))
    left = text("SELECT count(*) FROM task_count_part")
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=15))
    assert connection.execute(left).scalar() == 1
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=16))
    assert connection.execute(left).scalar() == 0
    assert numbers(connection, MINUTE) == [("t", 5)]


def test_each_span_has_an_age(connection: Connection) -> None:
    put(connection, "a", part(NOON, 5))
    roll_up(connection, None, KEPT, now=LATER)
    left = []
    for age in (KEPT.minutes, KEPT.hours, KEPT.days):
        roll_up(connection, LATER, KEPT, now=NOON + age + timedelta(days=1))
        left.append([len(numbers(connection, span)) for span in (MINUTE, HOUR, DAY)])
    assert left == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_beyond_the_most_keys_the_rest_is_one(connection: Connection) -> None:
    rare = [part(NOON, 1, f"rare{n:04}") for n in range(MOST_KEYS + 10)]
    put(connection, "a", part(NOON, 9, "often"), *rare)
    roll_up(connection, None, KEPT, now=LATER)
    put(connection, "b", *[part(NOON, 5, f"later{n}") for n in range(3)])
    roll_up(connection, None, KEPT, now=LATER)
    found = dict(numbers(connection, MINUTE))
    assert len(found) == MOST_KEYS + 1
    assert (found["often"], found[OTHER]) == (9, 11 + 15)
    assert sum(found.values()) == 9 + MOST_KEYS + 10 + 15
    assert sum(dict(numbers(connection, HOUR)).values()) == sum(found.values())


def test_what_a_statement_moves_is_counted_with_it(connection: Connection) -> None:
    gone = [
        ("t", "q", CountedOutcome.SKIPPED),
        ("t", "q", CountedOutcome.SKIPPED),
        ("u", 'q"', CountedOutcome.EXPIRED),
    ]
    add_counts(connection, gone, now=NOON)
    add_counts(connection, gone[:1], now=NOON)
    add_counts(connection, [], now=NOON)
    roll_up(connection, None, KEPT, now=LATER)
    assert numbers(connection, MINUTE, "name, queue, outcome, number, runs") == [
        ("t", "q", 2, 3, []),
        ("u", 'q"', 4, 1, []),
    ]
