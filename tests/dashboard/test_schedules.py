"""Pages and actions of schedules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, text

from tasks_app import Settings, create_schedule
from tasks_app.dashboard.html import local
from tasks_app.domain.tasks.states import Event
from tasks_app.monitor.pages import schedules as pages
from tasks_app.pool.runs.settle import settle_one
from tests.dashboard.browser import EVIL, Browser, browser_of, is_inert, shows, text_of, write
from tests.dashboard.test_pages import audit as lines_of_audit
from tests.factory import claimed_task, ending, pending_task


def add(engine: Engine, name: str = "nightly", task: str = "t", **options: Any) -> None:
    options = options or {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}
    with engine.begin() as connection:
        create_schedule(connection, name, task, {"api_token": "tok_secret", "n": 1}, **options)


def fire(engine: Engine, minutes: int, outcome: str, task_id: int | None = None) -> None:
    insert = """
        INSERT INTO task_schedule_fire (schedule_id, fire_at, outcome, task_id, fired_at)
        SELECT id, now() - make_interval(mins => :m), :o, :t,
            now() - make_interval(mins => :m) + interval '2 s' FROM task_schedule"""
    write(engine, insert, m=minutes, o=outcome, t=task_id)


def ended(engine: Engine, event: Event) -> int:
    with engine.begin() as connection:
        task = claimed_task(connection)
        settle_one(connection, ending(task, event))
        write_back = "UPDATE task_completed SET created_at = now() WHERE id = :id"
        connection.execute(text(write_back), {"id": task.fence.task_id})
        return int(task.fence.task_id)


def audit(engine: Engine) -> list[tuple[str, str, list[int]]]:
    return [line for line in lines_of_audit(engine) if line[0] != "schedule add"]


def one(browser: Browser, name: str = "nightly", query: str = "") -> Any:
    return browser.get(f"/api/schedules/{quote(name, safe='')}{query}").json()


def test_the_list_says_what_fires_when_and_how_it_ended(engine: Engine, browser: Browser) -> None:
    add(engine)
    good, bad = ended(engine, Event.SUCCEED), ended(engine, Event.FAIL)
    with engine.begin() as connection:
        waits = int(pending_task(connection))
    fire(engine, 5, "made", 999_999)
    write(engine, "UPDATE task_schedule_fire SET fired_at = fired_at - interval '1 day'")
    for minutes, outcome, task_id in ((4, "made", good), (3, "skipped", None), (2, "made", bad)):
        fire(engine, minutes, outcome, task_id)
    write(engine, "UPDATE task_schedule_fire SET fired_at = fire_at")
    fire(engine, 1, "made", waits)
    (line,) = browser.get("/api/schedules").json()["lines"]
    assert "02:00" in line["words"]
    assert line["next_run_at"] is not None
    states = [each["state"] for each in line["fires"]]
    assert states == [None, "SUCCEEDED", None, "FAILED", "PENDING"]
    page = browser.get("/schedules").text
    shows(page, *(f'href="/tasks/{task_id}"' for task_id in (good, bad, waits)))
    shows(page, 'class="sq ok"', 'class="sq bad"')
    shows(text_of(page), "in time", "2.0 s")


def test_ten_outcomes_are_enough(engine: Engine, browser: Browser) -> None:
    add(engine)
    for minutes in range(15):
        fire(engine, minutes, "skipped")
    assert len(one(browser)["line"]["fires"]) == pages.SHOWN
    assert len(one(browser)["instants"]) == pages.INSTANTS


def test_instants_are_shown_by_the_clocks_of_the_zone(engine: Engine, browser: Browser) -> None:
    add(engine)
    page = text_of(browser.get("/schedules/nightly").text)
    shows(page, "02:00 in Europe/Berlin.", "in UTC, and by the clocks of Europe/Berlin")
    assert "by the clocks of Europe/Berlin" in text_of(browser.get("/schedules").text)
    add(engine, "daily", cron="0 2 * * *")
    assert "in UTC, and by" not in text_of(browser.get("/schedules/daily").text)
    for zone in ("Nowhere/Land", "", "../etc"):
        assert local(datetime(2026, 1, 1, tzinfo=UTC), zone) == ""


def test_filters_and_pages(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 2)
    for name in ("a", "b", "c"):
        add(engine, name, every="1h")
    add(engine, "d", "shop.mail", every="1h", queue="mail", enabled=False)
    write(engine, "UPDATE task_schedule SET remark = 'cannot be read' WHERE name = 'c'")

    def names(query: str = "") -> list[str]:
        return [each["name"] for each in browser.get(f"/api/schedules{query}").json()["lines"]]

    assert names() == ["a", "b"]
    first = browser.get("/api/schedules").json()
    assert (first["number"], first["following"]) == (4, "b")
    assert names("?after=b") == ["c", "d"]
    assert names("?enabled=no") == names("?queue=mail") == names("?text=MAIL") == ["d"]
    assert names("?enabled=broken") == ["c"]
    assert "after=b" in browser.get("/schedules").text
    assert "No schedule fits" in browser.get("/schedules?text=zzz").text
    assert browser.get("/schedules?enabled=perhaps").status_code == 400


def test_a_late_one_says_so(engine: Engine, browser: Browser) -> None:
    add(engine)
    write(engine, "UPDATE task_schedule SET next_run_at = now() - interval '5 min'")
    assert 290 < one(browser)["line"]["late_s"] < 400
    assert "It fires at the next scan" in browser.get("/schedules/nightly").text


def test_a_broken_one_says_so_and_is_mended(engine: Engine, browser: Browser) -> None:
    add(engine)
    broken = "UPDATE task_schedule SET remark = 'zone cannot be read', zone = 'Mars'"
    write(engine, f"{broken}, next_run_at = NULL")
    model = one(browser)
    assert "Mars" in model["line"]["words"]
    assert model["instants"] == []
    assert "zone cannot be read" in browser.get("/schedules/nightly").text
    assert "zone cannot be read" in browser.get("/schedules").text
    assert browser.act("/schedules/nightly/change", {"timezone": "Asia/Tokyo"}).status_code == 303
    mended = one(browser)["line"]
    assert mended["remark"] is None
    assert mended["next_run_at"] is not None


def test_no_schedules_say_what_to_do(browser: Browser) -> None:
    assert "tasks-app schedules add" in browser.get("/schedules").text


CONSTRAINT = """
    SELECT pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = 'task_schedule'::regclass AND conname = 'names_are_valid'
"""
ODD = ("a/b", "/lead", "a//b", "a/run", "a?b#c", "50%", "ä ö", "a.b:c-d", "x/remove", EVIL)


@pytest.mark.parametrize("name", ODD)
def test_names_may_hold_anything(engine: Engine, browser: Browser, name: str) -> None:
    """As a table without our constraint could have them."""
    with engine.begin() as connection:
        said = connection.execute(text(CONSTRAINT)).scalar_one()
        connection.execute(text("ALTER TABLE task_schedule DROP CONSTRAINT names_are_valid"))
    try:
        add(engine, every="1h")
        write(engine, "UPDATE task_schedule SET name = :name", name=name)
        page = browser.get("/schedules").text
        address = f"/schedules/{quote(name, safe='')}"
        assert f'href="{address}"' in page
        is_inert(page)
        assert one(browser, name)["line"]["name"] == name
        shown = browser.get(address)
        assert shown.status_code == 200
        is_inert(shown.text)
        answer = browser.act(f"{address}/run")
        assert answer.status_code == 303
        assert browser.get(answer.headers["location"]).status_code == 200
        assert browser.act(f"{address}/remove").status_code == 303
        assert browser.get("/api/schedules").json()["lines"] == []
    finally:
        write(engine, "DELETE FROM task_schedule")
        restored = f"ALTER TABLE task_schedule ADD CONSTRAINT names_are_valid {said}"
        with engine.begin() as connection:
            connection.exec_driver_sql(restored)


def test_a_name_with_nul_is_no_name(browser: Browser) -> None:
    assert browser.get("/schedules/a%00b").status_code == 400
    assert browser.act("/schedules/a%00b/run").status_code == 400


def test_markup_and_policy(engine: Engine, browser: Browser) -> None:
    add(engine)
    payload = "jsonb_build_object(CAST(:evil AS text), CAST(:evil AS text))"
    evil = f"UPDATE task_schedule SET remark = :evil, declared_in = :evil, payload = {payload}"
    write(engine, evil, evil=EVIL)
    for path in ("/schedules", "/schedules/nightly", f"/schedules/nightly?cron={quote(EVIL)}"):
        is_inert(browser.get(path).text, path)
    assert "tok_secret" not in browser.get("/schedules/nightly").text


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
def test_a_wrong_change_is_one_sentence(engine: Engine, browser: Browser, query: str) -> None:
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
    viewer, operator = browser_of(settings, "viewer"), browser_of(settings, "operator")
    for path in ("/schedules/nightly", "/schedules/nightly?every=1h"):
        assert 'method="post"' not in viewer.get(path).text
        page = operator.get(path).text
        assert "/schedules/nightly/run" in page
        for action in ("change", "remove"):
            assert f"/schedules/nightly/{action}" not in page
    for action in ("change", "remove"):
        assert operator.act(f"/schedules/nightly/{action}").status_code == 403
        assert operator.act(f"/schedules/%6eightly/{action}").status_code == 403
