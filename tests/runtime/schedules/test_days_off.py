"""Schedules that name a calendar: made, changed, fired, and when the calendar changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from tasks_app import (
    InvalidScheduleError,
    InvalidTaskError,
    Schedule,
    change_schedule,
    create_schedule,
    get_schedule,
    preview,
    preview_schedule,
    remove_calendar,
    set_calendar,
)
from tasks_app.domain.schedules.days_off import DaysOff, OnDayOff
from tasks_app.pool import scheduling as rows
from tasks_app.runtime.schedules.preview import preview_change
from tests.runtime.bench import Bench
from tests.runtime.timetable import scheduled, scheduler, standing, tasks

DAY = timedelta(days=1)
EVE, XMAS = date(2030, 12, 24), date(2030, 12, 25)
"""Tuesday and Wednesday."""
START = datetime(2030, 12, 23, tzinfo=UTC)


def made(session: Session, **options: Any) -> Schedule:
    given = {"cron": "0 7 * * *", "starts_at": START, "calendar": "de", **options}
    return create_schedule(session, "s", "t", **given)


def days(session: Session, number: int = 3) -> list[int]:
    shown = preview_schedule(session, "s", number)
    assert shown is not None
    return [at.day for at in shown.instants]


@pytest.fixture
def session(bench: Bench) -> Iterator[Session]:
    """A session in whose transaction there is a calendar."""
    with Session(bench.engine) as session:
        set_calendar(session, "de", [EVE, XMAS])
        yield session


def test_they_are_left_out(session: Session) -> None:
    schedule = made(session)

    assert schedule.days_off == DaysOff("de", OnDayOff.SKIP)
    assert days(session) == [23, 26, 27]
    assert schedule.explain().startswith(
        "At 07:00 every day, by the clocks of UTC, not on days of de, from 2030-12-23"
    )


def test_or_moved(session: Session) -> None:
    made(session, cron="0 7 * * tue,fri", on_day_off="next_working_day")

    assert days(session) == [26, 27, 31]


def test_the_first_instant_is_no_day_off(session: Session) -> None:
    assert made(session, starts_at=START + DAY).next_run_at == datetime(2030, 12, 26, 7, tzinfo=UTC)


def test_what_fires_is_what_the_preview_says(bench: Bench, session: Session) -> None:
    session.commit()
    scheduled(bench, cron="0 7 * * *", calendar="de", now=START)

    for hours in range(0, 96, 6):
        scheduler(bench).run_once(now=START + timedelta(hours=hours))

    assert [task.fire_at[:10] for task in tasks(bench)] == ["2030-12-23", "2030-12-26"]


def test_two_that_meet_make_one_task(bench: Bench, session: Session) -> None:
    session.commit()
    options = {"calendar": "de", "on_day_off": "next_working_day"}
    scheduled(bench, cron="0 7 * * *", now=START, **options)

    for hours in range(0, 96, 6):
        scheduler(bench).run_once(now=START + timedelta(hours=hours))

    assert [task.fire_at[:10] for task in tasks(bench)] == ["2030-12-23", "2030-12-26"]


class TestAChange:
    def test_of_the_calendars_days_moves_the_next_instant(self, session: Session) -> None:
        made(session, starts_at=START + DAY)

        set_calendar(session, "de", [EVE])

        schedule = get_schedule(session, "s")
        assert schedule is not None
        assert schedule.next_run_at == datetime(2030, 12, 25, 7, tzinfo=UTC)

    def test_of_a_calendar_leaves_an_instant_that_is_due(self, session: Session) -> None:
        schedule = made(session)
        late = datetime(2030, 12, 24, tzinfo=UTC)

        rows.recompute_next_fire(session.connection(), "de", now=late)

        again = get_schedule(session, "s")
        assert again is not None
        assert again.next_run_at == schedule.next_run_at == datetime(2030, 12, 23, 7, tzinfo=UTC)

    def test_of_the_schedule_adds_and_removes_days_off(self, session: Session) -> None:
        made(session, calendar=None, retry="5s", headers={"mine": 1})
        assert days(session) == [23, 24, 25]

        change_schedule(session, "s", calendar="de", on_day_off="next_working_day")
        assert days(session) == [23, 26, 27]
        again = change_schedule(session, "s", priority=1)
        assert again is not None
        assert again.days_off == DaysOff("de", OnDayOff.NEXT_WORKING_DAY)
        last = change_schedule(session, "s", calendar="")

        assert last is not None
        assert last.days_off is None
        assert last.options == '{"retry": "5s", "headers": {"mine": 1}, "max_attempts": 2}'
        assert days(session) == [23, 24, 25]

    def test_moves_the_next_instant(self, session: Session) -> None:
        made(session, calendar=None, starts_at=START + DAY)

        changed = change_schedule(session, "s", calendar="de")

        assert changed is not None
        assert changed.next_run_at == datetime(2030, 12, 26, 7, tzinfo=UTC)

    def test_is_shown_before(self, session: Session) -> None:
        made(session, calendar=None)

        shown = preview_change(session, "s", 2, calendar="de")

        assert shown is not None
        assert [at.day for at in shown.instants] == [23, 26]


def test_a_preview_of_what_is_not_there_yet(session: Session) -> None:
    shown = preview(session, 2, cron="0 7 * * *", starts_at=START, calendar="de")

    assert [at.day for at in shown.instants] == [23, 26]


def test_a_calendar_that_a_schedule_names_stays(session: Session) -> None:
    made(session)

    with pytest.raises(InvalidTaskError, match="is named by schedule s"):
        remove_calendar(session, "de")
    change_schedule(session, "s", calendar="")
    assert remove_calendar(session, "de")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"calendar": "fr"}, "calendar 'fr' does not exist. Allowed: de"),
        ({"calendar": None, "on_day_off": "skip"}, "on_day_off is given without a calendar"),
        ({"on_day_off": "never"}, "on_day_off is 'never'"),
        ({"calendar": 7}, "calendar is 7"),
        (
            {"cron": None, "every": "1d", "on_day_off": "next_working_day"},
            "on_day_off cannot move instants of every=",
        ),
        ({"cron": None, "at": datetime(2030, 12, 24, 7, tzinfo=UTC)}, "when never comes"),
    ],
)
def test_what_makes_no_sense_is_refused(session: Session, options: dict, said: str) -> None:
    with pytest.raises(InvalidScheduleError, match=said):
        made(session, **options)
    assert get_schedule(session, "s") is None


def test_a_row_that_bypassed_the_checks_is_broken_and_is_mended(
    bench: Bench, session: Session
) -> None:
    session.commit()
    scheduled(bench, cron="0 7 * * *", calendar="de", on_day_off="skip", now=START)
    bench.sql('UPDATE task_schedule SET options = options || \'{"on_day_off": "x"}\'')
    scheduler(bench).run_once(now=START + DAY)
    broken = standing(bench)
    assert (broken.last_outcome, broken.remark) == (
        "broken",
        "on_day_off is 'x'. Allowed: skip, next_working_day.",
    )

    mended = change_schedule(session, "s", on_day_off="next_working_day")

    assert mended is not None
    assert (mended.remark, mended.days_off) == (None, DaysOff("de", OnDayOff.NEXT_WORKING_DAY))
    assert mended.next_run_at is not None
