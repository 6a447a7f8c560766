"""What the buttons of schedules do."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tasks_app import Settings
from tasks_app.monitor.pages import schedules as pages
from tests.dashboard.browser import Browser, dashboard, text_of
from tests.dashboard.test_schedules import add, audit, one


def test_run_now(engine: Engine, browser: Browser) -> None:
    add(engine)
    before = one(browser)["line"]["next_run_at"]
    answer = browser.act("/schedules/nightly/run")
    assert answer.headers["location"] == "/schedules/nightly"
    assert "was created" in browser.get("/schedules/nightly").text
    (row,) = browser.get("/api/tasks").json()["rows"]
    assert audit(engine) == [("schedule run", "local (dashboard)", [row["id"]])]
    assert one(browser)["line"]["next_run_at"] == before
    page = browser.get(f"/tasks/{row['id']}").text
    assert 'href="/schedules/nightly"' in page, "its task leads back"


def test_a_taken_key_makes_no_task(engine: Engine, browser: Browser) -> None:
    add(engine, every="1h", unique_key="k")
    assert browser.ask("POST", "/api/schedules/nightly/run", json={}).json()["changed"]
    again = browser.ask("POST", "/api/schedules/nightly/run", json={}).json()
    assert not again["changed"]
    assert "unique_key" in again["said"]


def test_pause_and_resume(engine: Engine, browser: Browser) -> None:
    add(engine)
    browser.act("/schedules/nightly/pause")
    assert not one(browser)["line"]["enabled"]
    browser.act("/schedules/nightly/pause")
    assert "Nothing was changed" in browser.get("/schedules/nightly").text
    browser.act("/schedules/nightly/resume")
    assert one(browser)["line"]["enabled"]
    browser.act("/schedules/nightly/resume")
    assert [line[0] for line in audit(engine)] == ["schedule disable", "schedule enable"]


def test_a_change_is_shown_before_it_is_saved(engine: Engine, browser: Browser) -> None:
    add(engine)
    rule = {"every": "2h", "queue": "mail", "priority": "1", "overlap": "skip"}
    page = browser.get("/schedules/nightly", params={**rule, "timezone": "Europe/Berlin"})
    assert page.status_code == 200
    assert "With this change: Every 2h" in text_of(page.text)
    assert '<input type="hidden" name="every" value="2h">' in page.text
    change = one(browser, query="?every=2h")["change"]
    assert len(change["instants"]) == pages.INSTANTS
    assert one(browser)["rule"]["cron"] == "0 2 * * *", "nothing is saved yet"
    assert audit(engine) == []

    browser.act("/schedules/nightly/change", {**rule, "cron": ""})
    found = one(browser)["rule"]
    assert (found["every"], found["queue"], found["priority"]) == ("2h", "mail", 1)
    assert found["overlap"] == "skip"
    assert [line[:2] for line in audit(engine)] == [("schedule change", "local (dashboard)")]
    same = browser.ask("POST", "/api/schedules/nightly/change", json={"every": "2h"}).json()
    assert not same["changed"]


@pytest.mark.parametrize(
    "query",
    ["cron=61+*+*+*+*", "every=soon", "priority=x", "timezone=Mars", "cron=@daily&every=1h"],
)
def test_a_wrong_change_is_refused_in_a_sentence(
    engine: Engine, browser: Browser, query: str
) -> None:
    add(engine)
    page = browser.get(f"/schedules/nightly?{query}")
    assert page.status_code == 400
    assert "This change is refused" in page.text
    assert "Save the change" not in page.text
    answer = browser.get(f"/api/schedules/nightly?{query}")
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"


def test_wrong_fields_change_nothing(engine: Engine, browser: Browser) -> None:
    add(engine)
    assert browser.act("/schedules/nightly/change", {"priority": "x"}).status_code == 400
    assert browser.act("/schedules/nightly/change", {"cron": "61 * * * *"}).status_code == 409
    assert browser.act("/schedules/nightly/change", {"cron": "\0"}).status_code == 400
    assert audit(engine) == []


def test_remove(engine: Engine, browser: Browser) -> None:
    add(engine)
    assert "Remove this schedule" in browser.get("/schedules/nightly").text
    assert browser.act("/schedules/nightly/remove").headers["location"] == "/schedules"
    assert browser.get("/schedules/nightly").status_code == 404
    assert browser.act("/schedules/nightly/run").status_code == 404
    assert [line[0] for line in audit(engine)] == ["schedule remove"]


def test_roles(engine: Engine, settings: Settings) -> None:
    add(engine)
    viewer, operator = (
        Browser(dashboard(settings, role=lambda _, role=role: role))
        for role in ("viewer", "operator")
    )
    for path in ("/schedules/nightly", "/schedules/nightly?every=1h"):
        assert 'method="post"' not in viewer.get(path).text
        page = operator.get(path).text
        assert "/schedules/nightly/run" in page
        for action in ("change", "remove"):
            assert f"/schedules/nightly/{action}" not in page
    for action in ("change", "remove"):
        assert operator.act(f"/schedules/nightly/{action}").status_code == 403
        assert operator.act(f"/schedules/%6eightly/{action}").status_code == 403
