"""Overview: from what is wrong to the page that helps; its plots, from the counters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import Settings
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.monitor.pages.history import Bar, History, Percentiles, task_history
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.runs.heartbeats import write_heartbeat
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.pool.tables import database_now
from tests.dashboard.browser import Browser, browser_of, shows, text_of, write
from tests.dashboard.test_errors import fails, fingerprint_of
from tests.dashboard.test_pages import waiting_task
from tests.pool.test_statistics import KEPT, part, put

BANK = """
    INSERT INTO task_breaker (dependency, names, state, mode, ratio, least, "window", open_for,
        probes)
    VALUES ('bank', '{pay}', 'open', 'open', 0.5, 10, '1 min', '30 s', 3)
"""


def test_what_is_wrong_leads_to_where_it_is_mended(engine: Engine, browser: Browser) -> None:
    waiting_task(engine, name="mail.send", queue="mail")
    page = browser.get("/").text
    assert "served by no worker" in text_of(page)
    shows(page, '<a href="/queues">Show queues</a>', '<span class="whole">-E</span>')


def test_what_could_not_run_is_told_apart(engine: Engine, browser: Browser) -> None:
    """Paused, behind a breaker, of an unknown name, in a queue that nobody serves; and one more."""
    with engine.begin() as connection:
        write_heartbeat(
            connection, owner="w", node="n", queues=["default", "mail"], handlers=["t", "pay"]
        )
        pause(connection, "mail")
        connection.execute(text(BANK))
    for name, queue in (("t", "mail"), ("pay", "default"), ("new", "default"), ("t", "post")):
        waiting_task(engine, name=name, queue=queue)
    waiting_task(engine, name="t")
    model = browser.get("/api/overview").json()

    assert (model["due"]["number"], model["barred"]["number"]) == (5, 4)
    (free,) = (x for x in model["lines"] if (x["name"], x["queue"]) == ("t", "default"))
    assert model["oldest_due_at"] == free["oldest_due_at"]
    shows(text_of(browser.get("/?part=queues").text), "mail t 0 1 ", "default t 1 0 ")
    shows(text_of(browser.get("/queues/mail").text), "Due 0 and 1 could not run")


def test_warnings_stand_apart_from_what_fails(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        pause(connection, "mail")
    assert 'class="alarm warn" aria-label="Warnings"' in browser.get("/").text
    assert 'class="alarm"' not in browser.get("/").text


def test_advice_is_a_button_if_allowed(
    engine: Engine, browser: Browser, settings: Settings
) -> None:
    with engine.begin() as connection:
        pause(connection, "mail")
        pause(connection, "*")
        connection.execute(text(BANK))
    shown = browser.get("/").text
    operator = browser_of(settings, "operator").get("/").text
    task = waiting_task(engine, name="t", queue="mail")

    for to in ("/queues/mail/resume", "/queues/*/resume", "/breakers/override"):
        assert f'action="{to}"' in shown
    assert 'name="mode" value="auto"' in shown
    assert 'action="/queues/mail/resume"' in operator
    assert 'action="/queues/*/resume"' not in operator
    assert 'action="/queues/*/resume"' in browser.get(f"/tasks/{task}").text


def test_causes_of_a_day_the_known_ones_last(engine: Engine, browser: Browser) -> None:
    known = [fails(engine, "shop.Declined", f"order {n} declined", name="pay") for n in range(3)]
    fails(engine, "KeyError", "'zip'", name="mail", queue="post")
    old = fails(engine, "OldError", "long ago", name="mail")
    aged = "UPDATE task_error SET finished_at = now() - interval '25 h' WHERE id = :id"
    write(engine, aged, id=old)
    fingerprint = fingerprint_of(browser, known[0])
    browser.act(f"/errors/{fingerprint}/known", {"note": "the bank"})
    causes = browser.get("/api/overview").json()["causes"]
    assert [(each["error"].partition(":")[0], each["number"]) for each in causes] == [
        ("KeyError", 1),
        ("shop.Declined", 3),
    ]
    page = browser.get("/").text
    assert f'href="/bulks/new?action=requeue&amp;fingerprint={fingerprint}"' in page
    assert "known to local (dashboard)" in text_of(page)


def test_each_part_is_read_by_itself(engine: Engine, browser: Browser) -> None:
    fails(engine, "KeyError", "'zip'", name="mail", queue="post")
    part = {"hx-request": "true"}
    shown = {
        name: browser.get(f"/?part={name}", headers=part).text
        for name in ("now", "queues", "causes")
    }
    assert ["Worker children" in text for text in shown.values()] == [True, False, False]
    assert ["Queues and names" in text for text in shown.values()] == [False, True, False]
    assert ["KeyError" in text for text in shown.values()] == [False, False, True]
    assert "<html" in browser.get("/?part=../base", headers=part).text


def count(connection: Connection) -> None:
    """Six runs of an hour ago, of which one failed and two were retried."""
    at = database_now(connection).replace(second=0, microsecond=0) - timedelta(minutes=30)
    sent = part(at, 3, "mail.send", ms=300), part(at, 1, "mail.send", CountedOutcome.FAILED)
    put(connection, "child", *sent, part(at, 2, "<b>evil", CountedOutcome.RETRIED))
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
