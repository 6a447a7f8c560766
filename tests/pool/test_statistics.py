"""Counts of what became of tasks, also of successes that left no row; how they are read."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import pytest
from sqlalchemy import Connection, text

from tasks_app import Settings
from tasks_app.domain.statistics import MOST_KEYS, OTHER, CountedOutcome
from tasks_app.monitor.metrics import totals as totals_of_scrape
from tasks_app.monitor.pages.history import read_history
from tasks_app.monitor.pages.tasks import unkept_of
from tasks_app.pool.retention import add_partition, partitions
from tasks_app.pool.statistics.parts import CountPart, add_counts, write_parts
from tasks_app.pool.statistics.read import (
    Failing,
    Grain,
    Wanted,
    history,
    minutes_not_rolled_up,
    most_failing,
    run_histograms,
    slowest,
    unkept,
)
from tasks_app.pool.statistics.roll_up import (
    _PROBE,
    DAY,
    HOUR,
    MINUTE,
    CountRetention,
    _first_block,
    reconcile,
    roll_up,
)
from tasks_app.pool.statistics.totals import keep_totals, totals
from tasks_app.pool.tables import database_now
from tests.pool.database import Ask, Verb, statistics

HOUR_OF_READ = Wanted(Grain.MINUTE, timedelta(hours=1))
NOON = datetime(2026, 5, 6, 12, 0, tzinfo=UTC)
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
    found = history(connection, HOUR_OF_READ, now=NOW)
    assert [(p.at, p.outcome, p.number) for p in found[:3]] == [
        (NOON, CountedOutcome.DONE, 6),
        (NOON, CountedOutcome.FAILED, 1),
        (NOON, CountedOutcome.RETRIED, 3),
    ]
    assert found[0].run_ms == 4 * 3 + 2 * 300
    assert len(found) == 9


def test_what_is_asked_for(connection: Connection) -> None:
    fill(connection)
    only = HOUR_OF_READ._replace(name="slow", queue="q", outcomes=[CountedOutcome.FAILED])
    assert [p.number for p in history(connection, only, now=NOW)] == [1, 1, 1]
    late = HOUR_OF_READ._replace(within=timedelta(minutes=5))
    assert {p.at for p in history(connection, late, now=NOW)} == {NOON + timedelta(minutes=57)}
    assert history(connection, HOUR_OF_READ._replace(queue="other"), now=NOW) == []
    (hour, *_) = history(connection, HOUR_OF_READ._replace(grain=Grain.HOUR), now=NOW)
    assert (hour.at, hour.number) == (NOON, 18)


def test_minutes_that_are_not_rolled_up_yet(connection: Connection) -> None:
    fill(connection)
    assert minutes_not_rolled_up(connection, HOUR_OF_READ) == []
    put(connection, "b", part(NOON + timedelta(minutes=59), 8))
    assert [(p.outcome, p.number) for p in minutes_not_rolled_up(connection, HOUR_OF_READ)] == [
        (CountedOutcome.DONE, 8)
    ]


def test_percentiles(connection: Connection) -> None:
    fill(connection)
    (every,) = run_histograms(connection, HOUR_OF_READ, now=NOW)
    assert (sum(every.waits), sum(every.runs)) == (18, 18)
    assert every.ran_ms(0.5) == 3
    assert {t.key for t in run_histograms(connection, HOUR_OF_READ, by="name", now=NOW)} == {
        "t",
        "slow",
    }
    assert run_histograms(connection, HOUR_OF_READ._replace(name="bad"), now=NOW) == []


def test_the_slowest_and_the_failing(connection: Connection) -> None:
    fill(connection)
    assert [s.name for s in slowest(connection, HOUR_OF_READ, now=NOW)] == ["slow", "t"]
    assert slowest(connection, HOUR_OF_READ, now=NOW)[0].mean_ms == 300
    found = most_failing(connection, HOUR_OF_READ, now=NOW)
    assert found == [Failing("slow", 3, 0, 6), Failing("bad", 0, 9, 0)]
    assert found[0].ratio == 1 / 3


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


DAY_OF_TOTALS, MINUTE_OF_TOTALS = timedelta(days=1), timedelta(minutes=1)
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
    roll_up(connection, None, KEPT, now=NOON + 2 * MINUTE_OF_TOTALS)
    put(connection, "a", part(NOON + 3 * MINUTE_OF_TOTALS, 2))
    assert told(connection) == {("t", "q", CountedOutcome.DONE): 7}


@pytest.mark.test_all
@pytest.mark.parametrize("days", [1, 2, 3, 730])
def test_no_total_falls_while_days_go_by(connection: Connection, days: int) -> None:
    rng, since, counted = random.Random(days), None, 0
    kept = CountRetention(timedelta(hours=3), timedelta(hours=30), days * DAY_OF_TOTALS)
    before: dict[Key, list[int]] = {}
    for step in range(60):
        at = NOON + step * timedelta(hours=5)
        counted += (number := rng.randint(1, 9))
        put(connection, f"slot {step}", part(at, number, ms=rng.choice((3, 2))))
        for later in (MINUTE_OF_TOTALS, 3 * MINUTE_OF_TOTALS, timedelta(hours=3)):
            if later > MINUTE_OF_TOTALS:
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
    roll_up(connection, None, KEPT, now=NOON + 3 * MINUTE_OF_TOTALS)
    before = growing(connection)
    assert reconcile(connection, NOON) == 10
    after = growing(connection)
    (key,) = before
    assert all(a <= b for a, b in zip(before[key], after[key], strict=True))
    assert after[key][0] == after[key][-1] == 600

    put(connection, "b", part(NOON, 20))  # late: it is in neither
    roll_up(connection, None, KEPT, now=NOON + 5 * MINUTE_OF_TOTALS)
    last = growing(connection)
    assert all(a <= b for a, b in zip(after[key], last[key], strict=True))
    assert last[key][0] == last[key][-1] == 610


def test_whoever_comes_first_keeps_a_total_of_its_own(connection: Connection) -> None:
    put(connection, "a", part(NOON, 1, "a"), part(NOON, 2, "b"))
    roll_up(connection, None, KEPT, now=NOON + 2 * MINUTE_OF_TOTALS)
    assert set(told(connection)) == {(n, "q", CountedOutcome.DONE) for n in "ab"}
    connection.execute(text("DELETE FROM task_total"))
    keep_totals(connection, KEPT.days, most=1, now=NOON)
    other = (OTHER, OTHER, CountedOutcome.DONE)
    assert told(connection) == {("b", "q", CountedOutcome.DONE): 2, other: 1}
    keep_totals(connection, KEPT.days, most=1, now=NOON + 5 * DAY_OF_TOTALS)
    assert told(connection) == {("b", "q", CountedOutcome.DONE): 2, other: 1}


def test_a_name_that_is_new_waits_for_its_roll_up(connection: Connection) -> None:
    put(connection, "a", part(NOON, 1, "a"))
    assert told(connection) == {}
    roll_up(connection, None, KEPT, now=NOON + 2 * MINUTE_OF_TOTALS)
    assert told(connection) == {("a", "q", CountedOutcome.DONE): 1}


KEPT = CountRetention(timedelta(days=2), timedelta(days=60), timedelta(days=730))


def part(
    at: datetime,
    number: int,
    name: str = "t",
    outcome: CountedOutcome = CountedOutcome.DONE,
    ms: int = 3,
) -> CountPart:
    """So many that waited and ran for 3 ms, which is bucket 2."""
    histogram = [0, 0, number]
    minute = int(at.timestamp()) // 60
    return CountPart(
        minute, name, "q", outcome, number, number * ms, number * ms, histogram, histogram
    )


def put(connection: Connection, slot: str, *parts: CountPart) -> None:
    """Write them in the minute after their own."""
    write_parts(connection, slot, parts, now=datetime.fromtimestamp(parts[0].minute * 60 + 61, UTC))


def numbers(connection: Connection, span: int, columns: str = "name, number") -> list[tuple]:
    query = text(f"SELECT {columns} FROM task_count WHERE span = :span ORDER BY at, name, outcome")
    return [tuple(row) for row in connection.execute(query, {"span": span})]


def left_no_row(connection: Connection, number: int, name: str = "sync.price") -> None:
    at = database_now(connection)
    done, gone = (part(at, number, name, o) for o in (CountedOutcome.DONE, CountedOutcome.UNKEPT))
    put(connection, name, done, gone)


def test_unkept_ones_are_told_before_and_after_the_roll_up(connection: Connection) -> None:
    assert unkept(connection) is None
    left_no_row(connection, 3)
    left_no_row(connection, 4, "mail")
    for later in (timedelta(0), timedelta(minutes=3)):
        found = unkept(connection)
        assert found is not None
        assert (found.number, found.names, found.more) == (7, ("mail", "sync.price"), False)
        only = unkept(connection, name="mail", queue="q")
        assert only is not None
        assert only.number == 4
        assert unkept(connection, name="mail", queue="other") is None
        roll_up(connection, None, KEPT, now=database_now(connection) + later)


def test_unkept_ones_are_told_for_thirty_days(connection: Connection) -> None:
    put(connection, "a", part(NOON, 3, outcome=CountedOutcome.UNKEPT))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=3))
    assert unkept(connection, now=NOON + timedelta(days=29)) is not None
    assert unkept(connection, now=NOON + timedelta(days=31)) is None


def test_of_many_names_of_unkept_ones_the_first_are_named(connection: Connection) -> None:
    for number in range(7):
        left_no_row(connection, number + 1, f"n{number}")
    found = unkept(connection)
    assert found is not None
    assert found.words.startswith("28 tasks of n6, n5, n4, n3, n2 and others succeeded")


@pytest.mark.parametrize(
    "filters",
    [{"pool": "error"}, {"state": "FAILED"}, {"group": "1"}, {"name": "x"}, {"held": True}],
)
def test_no_unkept_ones_are_told_of_others(
    connection: Connection, filters: dict[str, object]
) -> None:
    left_no_row(connection, 3)
    assert unkept_of(connection, filters) is None
    assert unkept_of(connection, {"state": "succeeded", "queue": "q"}) is not None


def test_a_lost_row_is_counted_beside_unkept_ones(connection: Connection) -> None:
    gone = CountedOutcome.UNKEPT
    over(connection, 1, 5, 10)
    put(connection, "a", part(NOON, 8), part(NOON, 6, outcome=gone))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=3))
    assert reconcile(connection, NOON) == 3
    assert numbers(connection, HOUR, "outcome, number") == [(CountedOutcome.DONE, 11), (gone, 6)]
    assert reconcile(connection, NOON) == 0


def test_history_and_metrics_count_unkept_ones_once(connection: Connection) -> None:
    put(connection, "a", part(NOON, 8), part(NOON, 6, outcome=CountedOutcome.UNKEPT))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=3))
    asked = Wanted(Grain.HOUR, timedelta(hours=2))
    past = read_history(connection, asked, "", now=NOON + timedelta(hours=1))
    assert (past.done, past.unkept) == (8, 6)
    counted = [s for s in totals_of_scrape(connection, Settings()) if s.labels[:1] == ("t",)]
    assert {(s.labels[-1], s.value) for s in counted if len(s.labels) == 3} == {("done", 8)}


MINUTES, KEYS, READ = 600, 40, 10
FULL = f"""
INSERT INTO task_count (span, at, name, queue, outcome, number, wait_ms, run_ms, waits, runs)
SELECT 1, date_trunc('minute', now()) - m * interval '1 min', 'n' || k, 'q' || k % 4, 1 + k % 2 * 4,
    7, 70, 70, array_fill(1, ARRAY[7]), array_fill(1, ARRAY[7])
FROM generate_series(0, {MINUTES - 1}) AS m, generate_series(0, {KEYS - 1}) AS k
"""
LATELY = Wanted(Grain.MINUTE, timedelta(minutes=READ))
VERBS: dict[str, tuple[Verb, int]] = {
    "history": (lambda c, _: history(c, LATELY), 0),
    "history of a name": (lambda c, _: history(c, LATELY._replace(name="n2")), 0),
    "times": (lambda c, _: run_histograms(c, LATELY, by="queue"), 0),
    "slowest": (lambda c, _: slowest(c, LATELY), 0),
    "most failing": (lambda c, _: most_failing(c, LATELY), 0),
}


@statistics
@pytest.mark.parametrize("verb", VERBS)
def test_only_rows_of_the_time_are_read(ask: Ask, verb: str) -> None:
    plan = ask(verb)
    read = (READ + 2) * KEYS
    assert plan.indexes == {"task_count_pkey"}
    assert plan.rows <= 6 * read, plan
    assert plan.buffers <= read, plan
