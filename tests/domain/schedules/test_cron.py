"""Cron expressions against an oracle that walks minute by minute, and against times by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import pytest

from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import SHORTHANDS, check_cron, explain_cron, next_cron, zone_of

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
    "0 3 * * *",
    "0 0 * * *",
    "15,45 0-3 * * *",
    "30 23 * * *",
    "30 * * * *",
    "*/5 * * * *",
    "*/10 2 * * *",
    "0 */2 * * *",
    "45 1 * * 0",
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
def test_times_that_were_worked_out_by_hand(
    expression: str, after: str, expected: list[str]
) -> None:
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
def test_what_is_no_expression_is_refused_in_one_sentence_with_what_to_do(
    expression: object,
) -> None:
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
