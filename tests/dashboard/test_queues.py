"""Pages of queues and of what holds their tasks, and what their buttons do."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, text

from tasks_app import Settings
from tasks_app.monitor.pages import queues as queues_page
from tasks_app.pool.runs.heartbeats import write_heartbeat
from tasks_app.runtime.api.limits import set_limit, share_queue
from tasks_app.runtime.api.queues import change_queue, pause_queue
from tests.dashboard.browser import (
    EVIL,
    Browser,
    browser_of,
    dashboard,
    is_inert,
    is_one_sentence,
    shows,
    text_of,
    write,
)
from tests.dashboard.test_pages import audit, failed_task, waiting_task
from tests.factory import claimed_task


def serve(engine: Engine, *queues: str) -> None:
    with engine.begin() as connection:
        write_heartbeat(
            connection, owner="w1", node="node", queues=queues, handlers=["t"], threads=4
        )


def queue(browser: Browser, name: str) -> Any:
    return browser.get(f"/api/queues/{quote(name, safe='')}").json()


def line_of(browser: Browser, name: str) -> Any:
    lines = browser.get("/api/queues").json()["lines"]
    return next(line for line in lines if line["queue"] == name)


def test_the_list_counts_and_says_who_serves(engine: Engine, browser: Browser) -> None:
    waiting_task(engine, queue="mail")
    waiting_task(engine, queue="mail", delay=3600)
    failed_task(engine, queue="mail")
    with engine.begin() as connection:
        claimed_task(connection, queue="mail")
        set_limit(connection, "queue", "mail", most=5)
    serve(engine, "mail", "idle")
    line = line_of(browser, "mail")
    assert (line["pending"], line["due"], line["running"], line["failed"]) == (2, 1, 1, 1)
    assert (line["children"], line["most"], line["runs"]) == (1, 5, True)
    assert line_of(browser, "idle")["pending"] == 0
    page = text_of(browser.get("/queues").text)
    assert "1 of 5" in page
    only = browser.get("/api/queues?text=MAI").json()["lines"]
    assert [each["queue"] for each in only] == ["mail"]
    assert "No queue has zzz" in browser.get("/queues?text=zzz").text


def test_an_empty_list_says_what_to_do(browser: Browser) -> None:
    page = browser.get("/queues").text
    shows(page, "tasks-app work", "No lock is held", "There are no limits", "depends_on")
    assert page.count('class="card"') == 3, "the list and what an admin may do"
    assert "No live worker serves it" in browser.get("/queues/nobody").text


def test_short_and_long_queues_are_counted_alike(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = """
        INSERT INTO task_pending (name, queue, payload, state, due_at, scan_at)
        SELECT 'n', :queue, '{}', 'PENDING', now(), now() FROM generate_series(1, :number)
    """
    with engine.begin() as connection:
        for name, number in (("short", 7), ("long", queues_page.MOST + 5)):
            connection.execute(text(insert), {"queue": name, "number": number})
    for at_once in (queues_page.AT_ONCE, 100):
        monkeypatch.setattr(queues_page, "AT_ONCE", at_once)
        fresh = Browser(browser._app)
        short, long = line_of(fresh, "short"), line_of(fresh, "long")
        assert (short["pending"], short["more"], short["due"]) == (7, False, 7)
        assert (long["pending"], long["more"]) == (queues_page.MOST, True)
        assert queue(fresh, "long")["line"]["pending"] == queues_page.MOST
        fresh.act("/queues/nobody/pause")  # forgets what was read


def test_a_queue_says_why_it_stands_still(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        pause_queue(connection, "mail", "moving house", resume_in="2h")
        change_queue(connection, "night", windows=["22:00-22:00 UTC not on never"], timeout="30s")
        change_queue(connection, "small", running_below=3)
        connection.execute(text("UPDATE task_queue SET shut = 'running' WHERE queue = 'small'"))
    found = queue(browser, "mail")
    assert found["line"]["words"].startswith("paused since")
    assert found["rules"]["reason"] == "moving house"
    assert "resumes by itself" in browser.get("/queues/mail").text
    assert "moving house; resumes" in text_of(browser.get("/queues").text)
    assert queue(browser, "night")["rules"]["timeout"] == "30s"
    assert not queue(browser, "small")["line"]["runs"]
    page = text_of(browser.get("/queues/small").text)
    shows(page, "It stands still: shut: tasks of other queues are running")
    shows(page, "only while fewer than 3 tasks of other queues run")


@pytest.fixture(autouse=True)
def calendar(engine: Engine) -> None:
    write(engine, "INSERT INTO task_calendar (name, days) VALUES ('never', '{}')")


def test_pause_and_resume(engine: Engine, browser: Browser) -> None:
    answer = browser.act("/queues/mail/pause", {"resume_in": "2h", "reason": "moving"})
    assert answer.headers["location"] == "/queues/mail"
    assert "Queue mail is paused" in browser.get("/queues/mail").text
    assert queue(browser, "mail")["rules"]["resume_at"] is not None
    browser.act("/queues/mail/pause")
    assert "Resume it first" in browser.get("/queues/mail").text
    browser.act("/queues/mail/resume")
    assert queue(browser, "mail")["line"]["runs"]
    browser.act("/queues/mail/resume")
    acted = [line[:2] for line in audit(engine)]
    assert acted == [(action, "local (dashboard)") for action in ("pause", "resume")]


def test_a_form_has_no_zone_and_means_utc(engine: Engine, browser: Browser) -> None:
    browser.act("/queues/mail/pause", {"resume_at": "2099-01-31T09:00"})
    assert queue(browser, "mail")["rules"]["resume_at"] == "2099-01-31T09:00:00Z"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"resume_at": "soon"}, 400),
        ({"resume_in": "soon"}, 409),
        ({"resume_in": "1h", "resume_at": "2099-01-31T09:00"}, 409),
        ({"reason": "\0"}, 400),
    ],
)
def test_a_wrong_pause_changes_nothing(
    engine: Engine, browser: Browser, fields: dict[str, str], status: int
) -> None:
    is_one_sentence(browser.act("/queues/mail/pause", fields), status)
    assert audit(engine) == []


def test_every_queue_is_paused_by_admins(engine: Engine, settings: Settings) -> None:
    operator = browser_of(settings, "operator")
    admin = Browser(dashboard(settings))
    for path in ("/queues/*/pause", "/queues/%2A/pause", "/queues/%2a/resume"):
        assert operator.act(path).status_code == 403
    assert "Pause every queue" not in operator.get("/queues").text
    assert admin.act("/queues/*/pause", {"reason": "fire"}).headers["location"] == "/queues"
    waiting_task(engine, queue="mail")
    assert "Every queue is paused since" in admin.get("/queues").text
    assert not queue(admin, "mail")["line"]["runs"]
    operator.act("/queues/mail/resume")
    assert "an admin can resume them" in operator.get("/queues/mail").text
    assert admin.get("/queues/*").status_code == 404
    admin.act("/queues/*/resume")
    assert queue(admin, "mail")["line"]["runs"]


def test_roles(engine: Engine, settings: Settings) -> None:
    with engine.begin() as connection:
        set_limit(connection, "queue", "mail", most=5)
        share_queue(connection, "mail")
    viewer, operator = browser_of(settings, "viewer"), browser_of(settings, "operator")
    for path in ("/queues", "/queues/mail"):
        assert 'method="post"' not in viewer.get(path).text
        page = operator.get(path).text
        assert "/queues/mail/pause" in page
        for forbidden in ("/limits/", "share", "/locks/free", "/change"):
            assert f'action="{forbidden}' not in page
    for path in ("/limits/set", "/locks/free", "/breakers/override", "/queues/mail/share"):
        assert operator.act(path).status_code == 403


def test_names_lead_to_their_queue(engine: Engine, browser: Browser) -> None:
    task_id = waiting_task(engine, queue="mail")
    for path in ("/", "/tasks", f"/tasks/{task_id}", "/queues"):
        assert 'href="/queues/mail"' in browser.get(path).text, path


@pytest.mark.parametrize("name", ["a/b", "a/pause", "a?b#c", "50%", "ä ö", EVIL])
def test_names_may_hold_anything(engine: Engine, browser: Browser, name: str) -> None:
    task_id = failed_task(engine)
    write(engine, "UPDATE task_error SET queue = :queue", queue=name)
    address = f"/queues/{quote(name, safe='')}"
    for path in ("/queues", "/", f"/tasks/{task_id}"):
        page = browser.get(path).text
        assert f'href="{address}"' in page
        is_inert(page)
    assert queue(browser, name)["line"]["failed"] == 1
    is_inert(browser.get(address).text)
    assert browser.act(f"{address}/pause").status_code == 409, "no such queue can be paused"
    assert browser.get("/queues/a%00b").status_code == 400
