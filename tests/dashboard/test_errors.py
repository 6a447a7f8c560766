"""Errors by cause: from a number to the mended tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from tasks_app import Settings
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.monitor.pages import errors as errors_page
from tasks_app.pool.runs.settle import settle_one
from tests.dashboard.browser import EVIL, Browser, browser_of, is_inert, shows, text_of, write
from tests.dashboard.test_pages import audit, failed_task
from tests.factory import claimed_task, ending

TRACE = 'Traceback (most recent call last):\n  File "/srv/shop/pay.py", line 7, in charge\nX'


def fails(engine: Engine, kind: str, message: str, **options: object) -> int:
    with engine.begin() as connection:
        task = claimed_task(connection, **options)
        settle_one(connection, ending(task, Event.FAIL, cause=Cause(kind, message, TRACE)))
        return int(task.fence.task_id)


def fingerprint_of(browser: Browser, task_id: int) -> str:
    return str(browser.get(f"/api/tasks/{task_id}").json()["task"]["fingerprint"])


def test_causes_are_grouped_most_tasks_first(engine: Engine, browser: Browser) -> None:
    for order in range(3):
        fails(engine, "shop.Declined", f"order {order} declined", name="pay", queue="money")
    fails(engine, "KeyError", "'zip'", name="mail", queue="post")
    model = browser.get("/api/errors").json()
    assert [group["number"] for group in model["groups"]] == [3, 1]
    assert model["groups"][0]["names"] == ["pay"]
    page = text_of(browser.get("/errors").text)
    shows(page, "2 causes", "shop.Declined")
    for query, numbers in (
        ("name=mail", [1]),
        ("queue=money", [3]),
        ("since=1h", [3, 1]),
        ("known=yes", []),
        ("known=no&name=pay", [3]),
    ):
        found = browser.get(f"/api/errors?{query}").json()["groups"]
        assert [group["number"] for group in found] == numbers, query
    assert "No cause fits all" in browser.get("/errors?known=yes").text


def test_none_says_so(browser: Browser) -> None:
    assert "No task has failed for good" in browser.get("/errors").text


def test_a_cause_shows_where_and_its_tasks_page_by_page(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors_page, "PAGE", 2)
    ids = [fails(engine, "shop.Declined", f"order {n}", biz_key=f"order:{n}") for n in range(3)]
    fingerprint = fingerprint_of(browser, ids[0])
    page = browser.get(f"/errors/{fingerprint}").text
    shows(page, "pay:charge", "line 7, in charge", ">order 2</td>", ">order 1</td>")
    first = browser.get(f"/api/errors/{fingerprint}").json()
    assert [task["id"] for task in first["tasks"]] == ids[:0:-1]
    at, before_id = first["older"]
    more = f"/api/errors/{fingerprint}?before={at.replace('+', '%2B')}&before_id={before_id}"
    second = browser.get(more).json()
    assert [task["id"] for task in second["tasks"]] == ids[:1]
    assert second["older"] is None
    assert f"/errors/{fingerprint}" in browser.get(f"/tasks/{ids[0]}").text


def test_known_for_a_time_and_unknown_again(engine: Engine, browser: Browser) -> None:
    fingerprint = fingerprint_of(browser, fails(engine, "shop.Declined", "no"))
    browser.act(f"/errors/{fingerprint}/known", {"note": "ask Ann", "until": "7d"})
    page = text_of(browser.get(f"/errors/{fingerprint}").text)
    shows(page, "Marked as known.", "local (dashboard) knows it, until", "ask Ann")
    [group] = browser.get("/api/errors?known=yes").json()["groups"]
    until = datetime.fromisoformat(group["known_until"])
    assert timedelta(days=6) < until - datetime.now(UTC) <= timedelta(days=7)
    browser.act(f"/errors/{fingerprint}/unknown")
    assert browser.get("/api/errors?known=yes").json()["groups"] == []
    browser.act(f"/errors/{fingerprint}/unknown")
    assert "is not marked as known" in browser.get("/errors").text
    assert [line[0] for line in audit(engine)] == ["error known", "error unknown"]


def test_requeue_from_the_page_of_a_cause(engine: Engine, browser: Browser) -> None:
    task_id = fails(engine, "shop.Declined", "no")
    page = browser.get(f"/errors/{fingerprint_of(browser, task_id)}").text
    assert f'action="/tasks/{task_id}/requeue"' in page
    browser.act(f"/tasks/{task_id}/requeue")
    assert browser.get(f"/api/tasks/{task_id}").json()["task"]["state"] == "PENDING"


def test_rows_of_older_code_are_counted(engine: Engine, browser: Browser) -> None:
    failed_task(engine)
    write(engine, "UPDATE task_error SET fingerprint = NULL")
    older = "1 failed tasks of older code have no fingerprint"
    shows(browser.get("/errors").text, older, "tasks-app errors fill")


def test_a_note_that_is_too_long_is_refused_in_words(engine: Engine, browser: Browser) -> None:
    fingerprint = fingerprint_of(browser, fails(engine, "shop.Declined", "no"))
    for field, value in (("note", "x" * 501), ("until", "soon")):
        answer = browser.act(f"/errors/{fingerprint}/known", {field: value})
        assert answer.status_code == 400
        assert field in answer.text


def test_a_cause_that_is_gone_is_not_found(browser: Browser) -> None:
    assert browser.get("/errors/0123456789abcdef").status_code == 404
    browser.act("/errors/0123456789abcdef/known")
    assert "No failed task has 0123456789abcdef." in browser.get("/errors").text


def test_markup_is_inert_and_viewers_get_no_buttons(engine: Engine, settings: Settings) -> None:
    viewer = browser_of(settings, "viewer")
    task_id = fails(engine, EVIL, EVIL, name="n", biz_key=EVIL)
    for path in ("/errors", f"/errors/{fingerprint_of(viewer, task_id)}"):
        page = viewer.get(path).text
        is_inert(page)
        assert 'method="post"' not in page
