"""The guide to reports: nights pass, and each has its report."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app import create_task, run_schedule
from tasks_app.testing import crash_next, drain, run, travel
from tests.how_to.conftest import Load

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(scope="module")
def reports(load: Load) -> Any:
    return load("nightly-report/reports.py")


@pytest.fixture
def shop(session: Session) -> Session:
    session.execute(text("CREATE TABLE purchase (placed_at timestamptz, cents int)"))
    session.execute(text("CREATE TABLE sales_report (day date PRIMARY KEY, orders int, cents int)"))
    return session


def order(session: Session, placed_at: datetime) -> None:
    session.execute(text("INSERT INTO purchase VALUES (:at, 100)"), {"at": placed_at})


def stored(session: Session) -> dict[date, int]:
    rows = session.execute(text("SELECT day, orders FROM sales_report ORDER BY day"))
    return {row.day: row.orders for row in rows}


def fire_at(session: Session) -> list[datetime]:
    heads = session.scalars(
        text("SELECT headers ->> 'fire_at' FROM task_all WHERE name = 'report.nightly' ORDER BY id")
    )
    return [datetime.fromisoformat(head).astimezone(BERLIN) for head in heads]


def test_each_night_makes_the_report_of_the_day_before(reports: Any, shop: Session) -> None:
    drain(shop)  # enters the schedule
    for _ in range(3):
        travel("1d", shop)
        drain(shop).assert_succeeded()
    instants = fire_at(shop)
    assert {(i.hour, i.minute) for i in instants} == {(0, 15)}
    assert [*stored(shop)] == [i.date() - timedelta(days=1) for i in instants]
    assert len(instants) == 3


def test_by_hand_it_is_the_report_of_the_day_before(reports: Any, shop: Session) -> None:
    drain(shop)  # enters the schedule
    run_schedule(shop, "report.nightly")
    drain(shop).assert_succeeded()
    assert len(stored(shop)) == 1


def test_a_day_is_that_of_the_shop_also_when_clocks_change(reports: Any, shop: Session) -> None:
    day = date(2026, 10, 25)  # 25 hours long in Berlin
    ends = datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 23, tzinfo=UTC)
    for end in ends:
        order(shop, end)
        order(shop, end - timedelta(minutes=1))
    run(reports.make, reports.Day(day=day), session=shop)
    assert stored(shop) == {day: 2}


def test_a_day_that_is_made_again_is_replaced_and_mailed_once(reports: Any, shop: Session) -> None:
    day = reports.Day(day=date(2026, 11, 24))
    noon = datetime(2026, 11, 24, 12, tzinfo=BERLIN)
    for number in (1, 2):
        order(shop, noon)
        create_task(shop, reports.make, day)
        crash_next(reports.make)
        mails = drain(shop).assert_succeeded().of("report.mail")
        assert len(mails.succeeded) == (1 if number == 1 else 0)
        assert stored(shop) == {day.day: number}
