"""Schedules and days off: left out, or moved to the next working day."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_app.domain.schedules.days_off import DaysOff, OnDayOff, with_days_off
from tasks_app.domain.schedules.timing import Cron, Every, Once, Timing, between

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


EXPRESSIONS = ("0 7 * * *", "*/30 2 * * *", "0,30 1-3 * * sat,sun", "15 23 * * thu", "0 0 * * *")


@pytest.mark.test_all
@given(
    st.sampled_from(EXPRESSIONS),
    st.sets(st.dates(date(2026, 3, 20), date(2026, 4, 5)), max_size=8),
    st.sampled_from(list(OnDayOff)),
    st.timedeltas(timedelta(0), timedelta(days=17)),
)
def test_it_is_what_a_walk_over_all_instants_says(expression, days, policy, after) -> None:
    """Over the change of the clocks on 29 March, too."""
    plain = cron(expression)
    start = datetime(2026, 3, 19, tzinfo=UTC) + after
    timing = with_days_off(plain, BERLIN, DaysOff("x", policy), days)

    found = list(islice(between(timing, start, start + 10 * DAY), 100))

    moved = set()
    for at in between(plain, start - 20 * DAY, start + 11 * DAY):
        hands = at.astimezone(BERLIN)
        day = hands.date()
        if policy is SKIP:
            if day not in days:
                moved.add(at)
            continue
        while day in days or day.isoweekday() >= 6:
            day += DAY
        same = day == hands.date()
        moved.add(at if same else datetime.combine(day, hands.time(), BERLIN).astimezone(UTC))
    assert found == sorted(at for at in moved if start <= at < start + 10 * DAY)[:100]
