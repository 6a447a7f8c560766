"""Intervals, single instants, and how any of them is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.timing import (
    Cron,
    Every,
    Once,
    TimingKind,
    instants_between,
    timing_of,
    timing_text,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
S, H = timedelta(seconds=1), timedelta(hours=1)


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
        ({"at": NOON}, TimingKind.ONCE, "2026-01-01T12:00:00+00:00"),
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
    assert Cron("30 2 * * *", "Europe/Berlin").explain() == (
        "At 02:30 every day, by the clocks of Europe/Berlin"
    )
    assert Every(90 * S, NOON).explain() == "Every 90s, counted from 2026-01-01 12:00:00Z"
    assert Once(NOON).explain() == "Once, at 2026-01-01 12:00:00Z"
