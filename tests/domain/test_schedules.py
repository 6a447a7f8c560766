"""When a schedule fires, and what becomes of missed instants."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from random import Random
from zoneinfo import ZoneInfo, available_timezones

import pytest

from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import SHORTHANDS, check_cron, explain_cron, next_cron, zone_of
from tasks_app.domain.schedules.misfire import (
    ON_TIME,
    PER_PASS,
    FireAll,
    Fired,
    MisfirePolicy,
    Overlap,
    OverlapVerdict,
    due_instants,
    fire_all,
    first_at,
    judge_overlap,
    parse_missed,
)
from tasks_app.domain.schedules.timing import (
    Cron,
    Every,
    Once,
    Timing,
    TimingKind,
    instants_between,
    timing_of,
    timing_text,
)

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
ZONES = {
    "Europe/Berlin": "an hour at 02:00 and 03:00",
    "America/New_York": "an hour at 02:00",
    "Australia/Lord_Howe": "half an hour, in the other season",
    "America/Havana": "an hour at midnight and at 01:00",
    "America/Santiago": "an hour at 24:00",
    "Antarctica/Troll": "two hours",
}
EXPRESSIONS = (
    "30 2 * * *",  # within most gaps and repeated hours
    *("0 3 * * *", "0 0 * * *", "15,45 0-3 * * *", "30 23 * * *", "30 * * * *", "*/5 * * * *"),
    *("*/10 2 * * *", "0 */2 * * *", "45 1 * * 0"),
)


# -- the oracle: Debian's rule, word for word, on sets of numbers of its own
@lru_cache
def numbers(field: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            first, last = str(low), str(high)
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return frozenset(found)


def matches(expression: str, hands: datetime) -> bool:
    minute, hour, day, month, weekday = expression.split()
    assert day == month == "*"
    return (
        hands.minute in numbers(minute, 0, 59)
        and hands.hour in numbers(hour, 0, 23)
        and hands.isoweekday() % 7 in numbers(weekday, 0, 6)
    )


def walked(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """cron(8) of Debian: "… only to jobs that run at a specific time … Jobs that run at the time
    that has disappeared are run immediately … those in the repeated time are not run twice. Jobs
    specified with wildcards are run based on the new time immediately."
    """
    minute, hour, *_ = expression.split()
    wild = minute.startswith("*") or hour.startswith("*")
    furthest = (start - MINUTE).astimezone(zone).replace(tzinfo=None)
    now = start
    while now < end:
        hands = now.astimezone(zone).replace(tzinfo=None)
        if wild:
            fires = matches(expression, hands)
        else:
            fires = False
            while furthest < hands:  # all that the clock has shown or left out since
                furthest += MINUTE
                fires = fires or matches(expression, furthest)
        if fires:
            yield now
        now += MINUTE


@lru_cache
def changes(zone: ZoneInfo, year: int) -> list[datetime]:
    """When the clocks were changed; they are at quarters of an hour only."""
    quarters = [datetime(year, 1, 1, tzinfo=UTC) + n * 15 * MINUTE for n in range(365 * 96)]
    offsets = [quarter.astimezone(zone).utcoffset() for quarter in quarters]
    return [
        q for q, old, new in zip(quarters[1:], offsets, offsets[1:], strict=False) if old != new
    ]


def ours(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    at = next_cron(expression, zone, start - timedelta(microseconds=1))
    while at is not None and at < end:
        yield at
        at = next_cron(expression, zone, at)


@pytest.mark.test_all
@pytest.mark.parametrize("name", ZONES)
def test_both_days_of_the_change_are_as_debians_cron_has_them(name: str) -> None:
    zone = zone_of(name)
    days = changes(zone, 2025)
    assert len(days) == 2
    for day in days:
        for expression in EXPRESSIONS:
            start, end = day - 2 * DAY, day + 2 * DAY
            expected = list(walked(expression, zone, start, end))
            assert list(ours(expression, zone, start, end)) == expected, (expression, day)
            assert expected


@pytest.mark.test_all
@pytest.mark.parametrize("name", ZONES)
def test_from_any_minute_around_the_change_the_next_is_the_same(name: str) -> None:
    """Who looks in the repeated hour must not be sent back to the first."""
    zone = zone_of(name)
    for day in changes(zone, 2025):
        for expression in EXPRESSIONS:
            fires = list(walked(expression, zone, day - DAY, day + 8 * DAY))
            for steps in range(-180, 181, 7):
                after = day + steps * MINUTE
                expected = next(fire for fire in fires if fire > after)
                assert next_cron(expression, zone, after) == expected, (expression, after)


BY_HAND = [
    # the night of 2025-03-30, 02:00 to 03:00, is left out: 01:00Z is 03:00 in summer time
    ("30 2 * * *", "2025-03-29T23:00Z", ["2025-03-30T01:00Z", "2025-03-31T00:30Z"]),
    ("0 30 2 * * *", "2025-03-29T23:00Z", ["2025-03-30T01:00Z", "2025-03-31T00:30Z"]),
    ("0,30 2 * * *", "2025-03-29T23:00Z", ["2025-03-30T01:00Z", "2025-03-31T00:00Z"]),
    ("*/30 2 * * *", "2025-03-29T23:00Z", ["2025-03-31T00:00Z", "2025-03-31T00:30Z"]),
    ("0 * * * *", "2025-03-30T00:30Z", ["2025-03-30T01:00Z", "2025-03-30T02:00Z"]),
    # that of 2025-10-26 has 02:00 to 03:00 twice: 00:30Z and 01:30Z are both half past two
    ("30 2 * * *", "2025-10-25T23:00Z", ["2025-10-26T00:30Z", "2025-10-27T01:30Z"]),
    ("0 30 2 * * *", "2025-10-25T23:00Z", ["2025-10-26T00:30Z", "2025-10-27T01:30Z"]),
    ("30 * * * *", "2025-10-26T00:00Z", ["2025-10-26T00:30Z", "2025-10-26T01:30Z"]),
    ("*/30 2 * * *", "2025-10-26T00:10Z", ["2025-10-26T00:30Z", "2025-10-26T01:00Z"]),
    ("*/20 * * * * *", "2025-10-26T00:59:30Z", ["2025-10-26T00:59:40Z", "2025-10-26T01:00Z"]),
    # 29 February, and the last day
    ("0 12 29 2 *", "2025-01-01T00:00Z", ["2028-02-29T11:00Z", "2032-02-29T11:00Z"]),
    ("0 12 L * *", "2025-02-01T00:00Z", ["2025-02-28T11:00Z", "2025-03-31T10:00Z"]),
]


@pytest.mark.parametrize(("expression", "after", "expected"), BY_HAND)
def test_times_worked_out_by_hand(expression: str, after: str, expected: list[str]) -> None:
    at, found = datetime.fromisoformat(after), []
    for _ in expected:
        at = next_cron(expression, zone_of("Europe/Berlin"), at)
        assert at is not None
        found.append(at)
    assert found == [datetime.fromisoformat(instant) for instant in expected]


def test_next_is_strictly_later_and_in_utc() -> None:
    on_it = datetime(2025, 6, 1, 12, tzinfo=UTC)
    after = next_cron("0 * * * *", zone_of("UTC"), on_it)
    just_before = next_cron("0 * * * *", zone_of("UTC"), on_it - timedelta(microseconds=1))
    assert (after, just_before) == (on_it + timedelta(hours=1), on_it)
    assert after is not None
    assert after.tzinfo is UTC


def test_the_end_of_all_years_is_the_end() -> None:
    assert next_cron("0 0 1 1 *", zone_of("UTC"), datetime(9999, 6, 1, tzinfo=UTC)) is None
    assert next_cron("* * * * *", zone_of("UTC"), datetime.max.replace(tzinfo=UTC)) is None


@pytest.mark.parametrize(
    "expression",
    [
        *("", "* * * *", "* * * * * * *", "61 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"),
        *("x * * * *", "*/0 * * * *", "5-1 * * * *", "* * * * MON#6", "* * * * MON#2/2"),
        *("* * * * 5L/2", "0 0 30 2 *", "0 0 31 2,4,6 *", "9" * 5000, "@never", "1,, * * * *"),
        *("* " * 200, None, 5),
    ],
)
def test_what_is_no_expression_is_refused_with_what_to_do(expression: object) -> None:
    with pytest.raises(
        InvalidScheduleError, match=r"^cron is [^\n]{1,110}\. Allowed: minute, hour"
    ):
        check_cron(expression)


def test_shorthands_and_untidy_spaces() -> None:
    for shorthand in SHORTHANDS:
        assert check_cron(shorthand) == shorthand
    assert check_cron("  30  2 *\t* * ") == "30 2 * * *"
    assert next_cron("@daily", zone_of("UTC"), datetime(2025, 1, 1, 5, tzinfo=UTC)) == datetime(
        2025, 1, 2, tzinfo=UTC
    )


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "", "../etc/passwd", "Europe", "x" * 999])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidScheduleError, match=r"timezone is .* Allowed: a name of the IANA"):
        zone_of(zone)


def test_expressions_are_explained_in_words() -> None:
    assert explain_cron("30 2 * * *") == "At 02:30 every day"
    assert explain_cron("*/15 * * * * *")


def test_what_lies_beside_the_zones_of_the_list_is_none() -> None:
    """The machine's own zone differs from host to host, and leap seconds move each instant."""
    for name in ("localtime", "posixrules", "Factory", "right/UTC", "posix/Europe/Berlin", ""):
        with pytest.raises(InvalidScheduleError, match="a name of the IANA list"):
            zone_of(name)
    for name in sorted(available_timezones() - {"localtime", "Factory"}):
        assert zone_of(name).key == name


NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)
S, M, H, D = (timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1))
HOURLY = Every(H, NOON - 100 * D)
EVERY_SECOND = Every(S, NOON - 4000 * D)


def fires(timing: Timing, policy: str, since: datetime, now: datetime = NOON, until=None) -> list:
    return due_instants(timing, parse_missed(policy), since=since, now=now, until=until).instants


@pytest.mark.parametrize("policy", ["skip", "fire_once", "fire_all"])
def test_what_is_on_time_fires_whatever_the_policy(policy: str) -> None:
    for late in (0 * S, S, ON_TIME):
        assert fires(HOURLY, policy, NOON, NOON + late) == [NOON]
    assert fires(EVERY_SECOND, policy, NOON - 3 * S) == [NOON - n * S for n in (3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", []),
        ("fire_once", [NOON - H]),
        ("fire_all", [NOON - n * H for n in (5, 4, 3, 2, 1)]),
        ("fire_all(2)", [NOON - n * H for n in (2, 1)]),
        ("fire_all(9, 3h)", [NOON - n * H for n in (3, 2, 1)]),
        ("fire_all(1, 4h)", [NOON - 1 * H]),
    ],
)
def test_of_what_was_missed_the_policy_chooses(policy: str, expected: list) -> None:
    now = NOON - 30 * M
    due = due_instants(HOURLY, parse_missed(policy), since=NOON - 5 * H, now=now, until=None)
    assert due.instants == expected
    assert due.next_at == NOON


def test_one_for_all_is_none_if_one_comes_on_time_anyway() -> None:
    assert fires(HOURLY, "fire_once", NOON - 5 * H, NOON + S) == [NOON]


def test_the_end_is_the_last_that_fires() -> None:
    end = NOON - 2 * H
    due = due_instants(HOURLY, FireAll(), since=NOON - 4 * H, now=NOON, until=end)
    assert due.instants == [NOON - n * H for n in (4, 3, 2)]
    assert due.next_at is None
    assert fires(HOURLY, "skip", NOON, NOON + S, until=NOON) == [NOON]


def test_many_are_fired_in_parts_and_none_twice_or_never() -> None:
    since, policy, all_ = NOON - 1500 * S, fire_all(2_000), []
    while since <= NOON:
        due = due_instants(EVERY_SECOND, policy, since=since, now=NOON, until=None)
        assert len(due.instants) <= PER_PASS
        all_ += due.instants
        assert due.next_at is not None
        since = due.next_at
    assert all_ == [NOON - n * S for n in range(1500, -1, -1)]


@pytest.mark.test_all
@pytest.mark.parametrize("policy", ["skip", "fire_once", "fire_all(100)"])
def test_years_of_missed_seconds_are_not_counted_off(policy: str) -> None:
    began = time.process_time()
    instants = fires(EVERY_SECOND, policy, NOON - 3000 * D)
    assert instants[-1] == NOON
    assert time.process_time() - began < 1


@pytest.mark.test_all
def test_any_span_gives_what_counting_off_gives() -> None:
    """The search for the newest goes back in growing steps: none may be lost between two."""
    rng = Random(7)
    timing = Cron("0,7,8,59 1-5,13 * * 1-4")
    for _ in range(60):
        since = NOON - rng.randrange(1, 20_000) * M
        most = rng.choice([1, 2, 30, 1000])
        counted, at = [], timing.next_after(since - S)
        while at is not None and at <= NOON:
            counted.append(at)
            at = timing.next_after(at)
        missed = [at for at in counted if at < NOON - ON_TIME][-most:]
        on_time = [at for at in counted if at >= NOON - ON_TIME]

        assert fires(timing, f"fire_all({most})", since) == missed + on_time


def test_the_first_instant_is_not_before_the_start() -> None:
    assert first_at(HOURLY, NOON, None, None) == NOON + H
    assert first_at(HOURLY, NOON, NOON + 5 * H, None) == NOON + 5 * H
    assert first_at(HOURLY, NOON, NOON + 5 * H + S, None) == NOON + 6 * H
    assert first_at(HOURLY, NOON, NOON - D, NOON + M) is None


@pytest.mark.parametrize("text", ["skip", "fire_once", "fire_all(100)", "fire_all(7, 1d)"])
def test_policies_are_written_as_they_are_read(text: str) -> None:
    assert str(parse_missed(text)) == text
    assert parse_missed(parse_missed(text)) == parse_missed(text)
    assert parse_missed("fire_all") == fire_all()
    assert parse_missed(MisfirePolicy.SKIP) is MisfirePolicy.SKIP


@pytest.mark.parametrize(
    "text", ["", "never", "fire_all()", "fire_all(0)", "fire_all(10001)", "fire_all(1, x)", None, 3]
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidScheduleError, match=r"missed .* Allowed: skip, fire_once or"):
        parse_missed(text)


A, B, C = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2, 3))


@pytest.mark.parametrize(
    ("policy", "busy", "expected"),
    [
        ("allow", False, OverlapVerdict(made=[A, B])),
        ("allow", True, OverlapVerdict(made=[A, B])),
        ("skip", False, OverlapVerdict(made=[A], without={B: Fired.SKIPPED})),
        ("skip", True, OverlapVerdict(without={A: Fired.SKIPPED, B: Fired.SKIPPED})),
        ("queue", False, OverlapVerdict(made=[A], queued=B)),
        ("queue", True, OverlapVerdict(queued=A, without={B: Fired.SKIPPED})),
        ("replace", False, OverlapVerdict(made=[B], without={A: Fired.REPLACED})),
        ("replace", True, OverlapVerdict(made=[B], without={A: Fired.REPLACED}, cancels=True)),
    ],
)
def test_two_instants(policy: str, busy: bool, expected: OverlapVerdict) -> None:
    assert judge_overlap(Overlap(policy), [A, B], None, busy=busy) == expected


@pytest.mark.parametrize(
    ("policy", "busy", "expected"),
    [
        ("allow", True, OverlapVerdict(made=[A, B])),
        ("skip", True, OverlapVerdict(without={A: Fired.SKIPPED, B: Fired.SKIPPED})),
        ("queue", False, OverlapVerdict(made=[A], queued=B)),
        ("queue", True, OverlapVerdict(queued=A, without={B: Fired.SKIPPED})),
        ("replace", True, OverlapVerdict(made=[B], without={A: Fired.REPLACED}, cancels=True)),
    ],
)
def test_one_that_was_queued_goes_first(policy: str, busy: bool, expected: OverlapVerdict) -> None:
    assert judge_overlap(Overlap(policy), [B], A, busy=busy) == expected


@pytest.mark.parametrize("policy", Overlap)
@pytest.mark.parametrize("busy", [True, False])
def test_no_instant_is_lost_and_nothing_is_made_of_nothing(policy: Overlap, busy: bool) -> None:
    instants = [A + n * timedelta(minutes=1) for n in range(5)]
    verdict = judge_overlap(policy, instants, None, busy=busy)
    queued = [] if verdict.queued is None else [verdict.queued]
    assert sorted([*verdict.made, *queued, *verdict.without]) == instants
    assert judge_overlap(policy, [], None, busy=busy) == OverlapVerdict()


def test_an_interval_counts_from_its_anchor_which_is_the_first() -> None:
    every = Every(90 * S, NOON)
    assert every.next_after(NOON - 5 * H) == NOON
    assert every.next_after(NOON - S) == NOON
    assert every.next_after(NOON) == NOON + 90 * S
    assert every.next_after(NOON + 89 * S) == NOON + 90 * S
    assert every.next_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)) is None


def test_an_interval_does_not_mind_the_clocks() -> None:
    berlin = timezone(timedelta(hours=1))
    every = Every(24 * H, datetime(2025, 3, 29, 12, tzinfo=berlin))
    assert every.next_after(datetime(2025, 3, 30, tzinfo=UTC)) == datetime(
        2025, 3, 30, 11, tzinfo=UTC
    )


def test_once_is_once() -> None:
    assert Once(NOON).next_after(NOON - S) == NOON
    assert Once(NOON).next_after(NOON) is None


def test_between_includes_its_start_and_not_its_end() -> None:
    assert list(instants_between(Every(H, NOON), NOON, NOON + 2 * H)) == [NOON, NOON + H]
    assert list(instants_between(Once(NOON), NOON, NOON)) == []


@pytest.mark.parametrize(
    ("when", "kind", "text"),
    [
        ({"cron": " 0  3 * * * "}, TimingKind.CRON, "0 3 * * *"),
        ({"every": 90}, TimingKind.EVERY, "90s"),
        ({"every": timedelta(hours=2)}, TimingKind.EVERY, "2h"),
        ({"at": NOON}, TimingKind.ONCE, "2026-01-10T12:00:00+00:00"),
    ],
)
def test_what_is_written_is_read_as_the_same(when: dict, kind: TimingKind, text: str) -> None:
    given = {"cron": None, "every": None, "at": None, **when}
    assert timing_text(**given, zone="UTC") == (kind, text)
    timing = timing_of(kind, text, "Europe/Berlin", NOON)
    again = {TimingKind.CRON: Cron, TimingKind.EVERY: Every, TimingKind.ONCE: Once}
    assert type(timing) is again[kind]
    assert timing.next_after(NOON - H) is not None
    assert timing.explain()


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ({}, "when is not given"),
        ({"cron": "0 3 * * *", "every": 5}, "when is given as cron and every"),
        ({"every": 0.5}, r"every is 500ms\. Allowed: 1s or more"),
        ({"every": "soon"}, "every is 'soon'"),
        ({"at": datetime(2026, 1, 1)}, "at has no time zone"),  # noqa: DTZ001
        ({"at": "noon"}, "at is not a datetime"),
        ({"at": datetime(9500, 1, 1, tzinfo=UTC)}, "at is in the year 9500"),
        ({"cron": "bad"}, "cron is 'bad'"),
        ({"cron": "0 3 * * *", "zone": "Mars"}, "timezone is 'Mars'"),
    ],
)
def test_what_cannot_be_is_refused(when: dict, said: str) -> None:
    given = {"cron": None, "every": None, "at": None, "zone": "UTC", **when}
    with pytest.raises(InvalidScheduleError, match=said):
        timing_text(**given)


@pytest.mark.parametrize(
    ("kind", "text"), [("once", "noon"), ("every", "0s"), ("cron", "x"), ("once", "2026-01-01")]
)
def test_a_row_that_was_written_past_us_is_refused_when_it_is_read(kind: str, text: str) -> None:
    with pytest.raises(InvalidScheduleError):
        timing_of(kind, text, "UTC", NOON)


def test_words() -> None:
    berlin = Cron("30 2 * * *", "Europe/Berlin").explain()
    assert berlin == "At 02:30 every day, by the clocks of Europe/Berlin"
    assert Every(90 * S, NOON).explain() == "Every 90s, counted from 2026-01-10 12:00:00Z"
    assert Once(NOON).explain() == "Once, at 2026-01-10 12:00:00Z"
