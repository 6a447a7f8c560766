"""Days off, and what pg_cron cannot do."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import accumulate, product
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import SHORTHANDS, check_cron, next_cron, zone_of
from tasks_app.domain.schedules.days_off import DaysOff, OnDayOff, with_days_off
from tasks_app.domain.schedules.pg_cron import (
    offset_of,
    why_pg_cron_cannot_fire,
    written_for_pg_cron,
)
from tasks_app.domain.schedules.schedule import Schedule, plan_of
from tasks_app.domain.schedules.timing import Cron, Every, Once, Timing, instants_between
from tests.pg_cron import UnreadError, Vixie

BERLIN = ZoneInfo("Europe/Berlin")
XMAS = {date(2026, 12, 24), date(2026, 12, 25), date(2026, 12, 26)}
"""Thursday, Friday, Saturday."""
SKIP, MOVE = OnDayOff.SKIP, OnDayOff.NEXT_WORKING_DAY
DAY = timedelta(days=1)


def shown(timing: Timing, policy: OnDayOff, days=XMAS, zone=BERLIN, number=4, month=12, day=22):
    timing = with_days_off(timing, zone, DaysOff("de", policy), days)
    start = datetime(2026, month, day, 12, tzinfo=zone)
    found = []
    at = timing.next_after(start)
    while at is not None and len(found) < number:
        found.append(f"{at.astimezone(zone):%a %d %H:%M}")
        at = timing.next_after(at)
    return found


def cron(expression: str) -> Cron:
    return Cron(expression, "Europe/Berlin")


def test_days_of_the_calendar_are_left_out() -> None:
    assert shown(cron("0 7 * * *"), SKIP) == [
        "Wed 23 07:00", "Sun 27 07:00", "Mon 28 07:00", "Tue 29 07:00",
    ]  # fmt: skip


def test_which_day_it_is_the_zone_says() -> None:
    """00:30 of the 24th in Berlin is still the 23rd in UTC."""
    assert shown(cron("30 0 * * *"), SKIP, number=2) == ["Wed 23 00:30", "Sun 27 00:30"]


def test_a_day_of_seconds_is_stepped_over_at_once() -> None:
    calls = 0

    class Counted(Every):
        def next_after(self, instant: datetime) -> datetime | None:
            nonlocal calls
            calls += 1
            return Every.next_after(self, instant)

    every = Counted(timedelta(seconds=1), datetime(2026, 1, 1, tzinfo=UTC))
    timing = with_days_off(every, BERLIN, DaysOff("de"), XMAS)
    at = timing.next_after(datetime(2026, 12, 24, 5, tzinfo=BERLIN))
    assert at == datetime(2026, 12, 27, tzinfo=BERLIN)
    assert calls < 6


def test_a_weekly_instant_is_moved_over_holiday_and_weekend() -> None:
    assert shown(cron("0 7 * * fri"), MOVE, number=2) == ["Mon 28 07:00", "Fri 01 07:00"]


def test_the_first_of_a_month_on_a_saturday_is_moved() -> None:
    assert shown(cron("0 7 1 * *"), MOVE, number=1, month=7, day=30) == ["Mon 03 07:00"]


def test_those_that_meet_on_a_day_are_one() -> None:
    assert shown(cron("0 7 * * *"), MOVE) == [
        "Wed 23 07:00", "Mon 28 07:00", "Tue 29 07:00", "Wed 30 07:00",
    ]  # fmt: skip


def test_those_of_several_days_are_in_order_of_their_times() -> None:
    """The Thursday's 15:00 comes after the Saturday's 09:00, on the Monday of both."""
    odd = cron("0 9,15 * * thu,sat")
    assert shown(odd, MOVE, number=3) == ["Mon 28 09:00", "Mon 28 15:00", "Thu 31 09:00"]


def test_a_single_instant() -> None:
    once = Once(datetime(2026, 12, 25, 8, tzinfo=BERLIN))
    assert shown(once, SKIP) == []
    assert shown(once, MOVE) == ["Mon 28 08:00"]


@pytest.mark.test_all
def test_a_calendar_of_nothing_but_days_off_ends() -> None:
    every_day = {date(2026, 12, 1) + n * DAY for n in range(3660)}
    assert shown(cron("0 7 * * *"), SKIP, every_day, number=1) != []
    assert shown(cron("0 7 1 1 *"), SKIP, {date(y, 1, 1) for y in range(2026, 9000)}) == []


@pytest.mark.parametrize(("policy", "said"), [(SKIP, "not on"), (MOVE, "next working day")])
def test_in_words(policy: OnDayOff, said: str) -> None:
    timing = with_days_off(cron("0 7 * * *"), BERLIN, DaysOff("de", policy), XMAS)
    assert said in timing.explain()
    assert timing.explain().endswith("days of de")


ALL = frozenset(range(24))
QUARTERS = (0, 15, 30, 45)
SPELLED: dict[str, tuple[tuple[int, ...], frozenset[int], str, bool]] = {
    "0 7 * * *": ((0,), frozenset({7}), "1234567", False),
    "*/30 2 * * *": ((0, 30), frozenset({2}), "1234567", True),
    "0,30 1-3 * * sat,sun": ((0, 30), frozenset({1, 2, 3}), "67", False),
    "15 23 * * thu": ((15,), frozenset({23}), "4", False),
    "0 0 * * *": ((0,), frozenset({0}), "1234567", False),
    "15 2 * * sun": ((15,), frozenset({2}), "7", False),
    "30 0,23 * * *": ((30,), frozenset({0, 23}), "1234567", False),
    "*/15 * * * *": (QUARTERS, ALL, "1234567", True),
}
"""Expressions as their minutes, hours and weekdays, and whether they begin with ``*``."""


class Clock:
    """What the clock of a zone shows, each quarter of an hour."""

    def __init__(self, zone: ZoneInfo, first: datetime, days: int) -> None:
        quarter = timedelta(minutes=15)
        self.instants = [first + n * quarter for n in range(days * 96)]
        self.shown = [at.astimezone(zone).replace(tzinfo=None) for at in self.instants]
        self.latest: list[datetime] = list(accumulate(self.shown, max))

    def first(self, hands: datetime) -> datetime:
        """When it first shows this time, or a later one."""
        return self.instants[bisect_left(self.latest, hands)]

    def walk(self, expression: str, policy: OnDayOff, days: set[date]) -> list[datetime]:
        """All instants of a schedule, but for the days at both ends."""
        minutes, hours, weekdays, is_wild = SPELLED[expression]
        found = set()
        first = self.shown[0].date()
        named: list[tuple[datetime, datetime | None]] = (
            list(zip(self.shown, self.instants, strict=True))
            if is_wild
            else [
                (datetime.combine(first + n * DAY, time(hour, minute)), None)
                for n, hour, minute in product(range(len(self.shown) // 96), sorted(hours), minutes)
            ]
        )
        for hands, at in named:
            if hands.minute not in minutes or hands.hour not in hours:
                continue
            if str(hands.isoweekday()) not in weekdays:
                continue
            day = hands.date()
            if policy is SKIP:
                fires = at or self.first(hands)
                shown = self.shown[self.instants.index(fires)].date()
                found |= set() if shown in days else {fires}
                continue
            while day in days or day.isoweekday() >= 6:
                day += DAY
            if day == hands.date() and at is not None:
                found.add(at)
            elif (moved := datetime.combine(day, hands.time())) <= self.latest[-1]:
                found.add(self.first(moved))
        return sorted(found)


def compare(
    zone: ZoneInfo, expression: str, policy: OnDayOff, days: set[date], first: datetime
) -> None:
    """Seven days in the middle of twenty-one, from each of their instants on."""
    clock = Clock(zone, first, 21)
    start, end = first + 10 * DAY, first + 17 * DAY
    expected = [at for at in clock.walk(expression, policy, days) if start <= at < end]
    timing = with_days_off(Cron(expression, zone.key), zone, DaysOff("x", policy), days)
    assert list(instants_between(timing, start, end)) == expected, (
        *(zone, expression, policy, days, first),
    )


@pytest.mark.test_all
@given(
    st.sampled_from(list(SPELLED)),
    st.sets(st.dates(date(2026, 3, 20), date(2026, 4, 5)), max_size=8),
    st.sampled_from(list(OnDayOff)),
    st.integers(0, 17),
)
@settings(deadline=None)
def test_it_is_what_a_walk_over_all_instants_says(expression, days, policy, after) -> None:
    """Over the change of the clocks on 29 March, too."""
    compare(BERLIN, expression, policy, days, datetime(2026, 3, 9, tzinfo=UTC) + after * DAY)


def changes(zone: ZoneInfo, year: int) -> list[datetime]:
    """The days of a year on which its clocks change."""
    days = [datetime(year, 1, 1, tzinfo=UTC) + n * DAY for n in range(366)]
    offsets = [day.astimezone(zone).utcoffset() for day in days]
    return [
        day for day, one, other in zip(days, offsets, offsets[1:], strict=False) if one != other
    ]


def test_over_two_changes_of_the_clocks() -> None:
    for name, at in (("Europe/Berlin", "2027-03-28"), ("America/Santiago", "2027-09-05")):
        first = datetime.fromisoformat(f"{at}T00:00Z") - 12 * DAY
        for expression in ("0 0 * * *", "0,30 1-3 * * sat,sun", "15 2 * * sun"):
            compare(ZoneInfo(name), expression, MOVE, set(), first)


@pytest.mark.test_all
def test_over_all_changes_of_all_zones() -> None:
    """Zones with the same changes are one."""
    rules: dict[Any, str] = {}
    for name in sorted(available_timezones()):
        days = tuple(changes(ZoneInfo(name), 2027))
        if days:
            rules.setdefault((days, days[0].astimezone(ZoneInfo(name)).utcoffset()), name)
    assert len(rules) > 20
    for name in rules.values():
        zone = ZoneInfo(name)
        for at in changes(zone, 2027):
            near = {at.date() + n * DAY for n in (-1, 0, 1)}
            for days, expression in product((set[date](), near, {at.date()}), list(SPELLED)[:-1]):
                compare(zone, expression, MOVE, days, at - 12 * DAY)


def test_a_time_that_was_skipped_on_a_day_off_is_kept_on_the_next_working_day() -> None:
    assert shown(cron("0 2 * * *"), MOVE, set(), month=3, day=26) == [
        "Fri 27 02:00", "Mon 30 02:00", "Tue 31 02:00", "Wed 01 02:00",
    ]  # fmt: skip


NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
UTC_ZONE = zone_of("UTC")
MINUTE = timedelta(minutes=1)


def schedule(options: dict[str, Any] | None = None, **when: Any) -> Schedule:
    when = {"cron": "0 3 * * *", **when}
    if not when["cron"]:
        del when["cron"]
    plan = plan_of(validate_task(NewTask("t", None, options or {}), None, 65536), when)  # type: ignore[arg-type]
    state = dict.fromkeys(
        (
            *("next_run_at", "queued_at", "last_run_at", "last_task_id", "last_outcome", "remark"),
            *("forgotten_until", "declared", "declared_in"),
        )
    )
    named = {"id": 1, "name": "s", "retired": False, "changed_by": "", "created_at": NOW}
    return Schedule(**vars(plan), **state, **named)


def _field(low: int, high: int, names: str = "") -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda pair: f"{min(pair)}-{max(pair)}"
    )
    step = st.integers(1, 70).map(str)
    stepped = st.tuples(st.one_of(st.just("*"), number, span), step).map("/".join)
    named = [st.sampled_from(names.split())] if names else []
    term = st.one_of(st.just("*"), number, span, stepped, *named)
    return st.one_of(st.just("*"), term, st.lists(term, min_size=2, max_size=3).map(",".join))


CRON = st.one_of(
    st.tuples(
        _field(0, 59),
        _field(0, 23),
        _field(1, 31),
        _field(1, 12, "jan MAR dec feb-APR"),
        _field(0, 7, "mon SUN mon-FRI mon-fri/2 5-7 tue#2 5L"),
    ).map(" ".join),
    st.sampled_from(sorted(SHORTHANDS)),
)
MINUTES = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda at: at.replace(second=0, microsecond=0)
)


@settings(max_examples=300, deadline=None)
@given(CRON, MINUTES)
def test_an_admitted_expression_starts_by_pg_cron_when_we_fire(
    expression: str, start: datetime
) -> None:
    try:
        check_cron(expression)
    except InvalidScheduleError:
        assume(False)
    assume(why_pg_cron_cannot_fire(schedule(cron=expression), NOW, "GMT") is None)
    read = Vixie(written_for_pg_cron(expression))
    for _ in range(3):
        following = next_cron(expression, UTC_ZONE, start)
        assert following is not None
        assert read.starts(following)
        between = min((following - start) // MINUTE, 1500)
        assert not any(read.starts(start + n * MINUTE) for n in range(1, between))
        start = following


@pytest.mark.parametrize(
    ("expression", "term", "at"),
    [
        ("5/20 * * * *", "5/20", None),
        ("10-10/20 * * * *", "10-10/20", NOW + 30 * MINUTE),
        ("10-010/20 * * * *", "10-010/20", NOW + 30 * MINUTE),
        ("0 3 * * mon-1/2", "MON-1/2", datetime(2026, 3, 4, 3, tzinfo=UTC)),
        ("*/90 * * * *", "*/90", None),
        ("0 3 * * tue#2", "TUE#2", datetime(2026, 3, 3, 3, tzinfo=UTC)),
        ("0 3 * * 5L", "5L", None),
        ("0 3 L * *", "L", None),
        ("0 3 LW * *", "LW", None),
    ],
)
def test_what_pg_cron_reads_otherwise_is_refused(
    expression: str, term: str, at: datetime | None
) -> None:
    """``at``: when the two differ; None: it does not read it."""
    why = why_pg_cron_cannot_fire(schedule(cron=expression), NOW, "GMT")
    assert why is not None
    assert why.upper() == f"pg_cron does not read {term} as we do".upper()
    if at is None:
        with pytest.raises(UnreadError):
            Vixie(expression)
    else:
        due = next_cron(expression, UTC_ZONE, at - MINUTE) == at
        assert Vixie(expression).starts(at) != due


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ({"cron": "", "every": "15m"}, "it has no cron expression"),
        ({"cron": "", "at": NOW}, "it has no cron expression"),
        ({"cron": "0 0 3 * * *"}, "it has seconds"),
        ({"calendar": "de"}, "it has days off"),
        ({"overlap": "queue"}, "overlap=queue"),
        ({"overlap": "replace"}, "overlap=replace"),
        ({"missed": "fire_all(3)"}, "fire_all: pg_cron catches up with nothing"),
        ({"timezone": "Europe/Berlin"}, "the clocks of Europe/Berlin change"),
        ({"timezone": "Asia/Kolkata"}, "its zone is Asia/Kolkata, that of pg_cron is GMT"),
        ({"options": {"strict_order": True, "order_key": "o"}}, "its option strict_order"),
        ({"timezone": "Etc/UTC", "overlap": "skip", "missed": "skip", "jitter": "5s"}, None),
        ({"options": {"delay": 3, "unique_key": "u", "max_attempts": 2}}, None),
    ],
)
def test_what_is_left_to_beat_says_why(when: dict[str, Any], why: str | None) -> None:
    assert why_pg_cron_cannot_fire(schedule(**when), NOW, "GMT") == why


def test_a_row_that_bypassed_the_checks_says_why() -> None:
    broken = replace(schedule(), expression="0 25 * * *")
    assert str(why_pg_cron_cannot_fire(broken, NOW)).startswith("it cannot be read: cron")
    other = replace(schedule(), options=json.dumps({"colour": 1}))
    assert why_pg_cron_cannot_fire(other, NOW) == "its option colour"


def test_the_zone_of_pg_cron_may_be_another_one_of_the_same_clocks() -> None:
    india = schedule(timezone="Asia/Kolkata")
    assert why_pg_cron_cannot_fire(india, NOW, "Asia/Calcutta") is None
    assert why_pg_cron_cannot_fire(india, NOW) is None  # whoever calls it knows the zone
    assert why_pg_cron_cannot_fire(india, NOW, "Europe/Berlin") is not None
    assert why_pg_cron_cannot_fire(india, NOW, "no/zone") is not None
    assert offset_of("Asia/Kolkata", NOW) == timedelta(hours=5, minutes=30)
