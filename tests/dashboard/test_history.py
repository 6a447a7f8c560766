"""The plots of Overview, from the counters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.monitor.pages.history import Bar, History, Percentiles, task_history
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.pool.tables import database_now
from tests.dashboard.browser import Browser, text_of
from tests.pool.test_statistics import KEPT, part, put


def count(connection: Connection) -> None:
    """Six runs of an hour ago, of which one failed and two were retried."""
    at = database_now(connection).replace(second=0, microsecond=0) - timedelta(minutes=30)
    put(
        connection,
        "child",
        part(at, 3, "mail.send", ms=300),
        part(at, 1, "mail.send", CountedOutcome.FAILED),
        part(at, 2, "<b>evil", CountedOutcome.RETRIED),
    )
    roll_up(connection, None, KEPT, now=at + timedelta(minutes=2))


def test_every_time_has_a_bar(connection: Connection) -> None:
    count(connection)
    found = task_history(connection, "1h")
    assert len(found.bars) == 61
    (bar,) = [bar for bar in found.bars if bar.done]
    assert (bar.done, bar.failed, bar.retried) == (3, 1, 2)
    assert (found.highest, found.bad_ratio) == (6, 0.5)
    assert found.ran.p50 is not None
    assert 2 <= found.ran.p50 <= 4
    assert found.slowest[0].name == "mail.send"
    assert len(task_history(connection, "24h").bars) == 25
    assert sum(bar.done for bar in task_history(connection, "7d").bars) == 3


def test_the_page_draws_them_and_runs_no_name(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        count(connection)
    for within in ("1h", "24h", "7d"):
        page = browser.get(f"/history?within={within}").text
        assert "3 done, 2 retried, 1 failed</title>" in page
        names = browser.get(f"/history?within={within}&part=names").text
        assert "&lt;b&gt;evil" in names
        assert "<b>evil" not in page + names
        assert "on average, until 20" in text_of(names)
        assert "50.0 % of runs did not succeed" in text_of(page)
    assert browser.get("/api/history?within=1h").json()["retried"] == 2
    assert "/history?within=7d" in browser.get("/?within=7d").text


def test_no_tasks_and_no_such_time(browser: Browser) -> None:
    assert "No task has ended within 24h" in browser.get("/history").text
    assert browser.get("/history?within=1y").status_code == 400
    assert browser.get("/?within=1y").status_code == 400


@pytest.mark.parametrize(("highest", "ceiling"), [(1, 4), (7, 8), (150, 200), (4_001, 8_000)])
def test_the_axis_ends_at_a_round_number(highest: int, ceiling: int) -> None:
    at = datetime(2026, 11, 23, tzinfo=UTC)
    none = Percentiles(None, None, None)
    found = History(at, "1h", (Bar(at, highest, 0, 0),), highest, 0, 0, none, none, (), ())
    assert found.ceiling == ceiling
    assert found.marks == (at,) * 5
