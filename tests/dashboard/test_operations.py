"""Workers, audit and groups."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tasks_app import NewTask, Settings, create_group
from tasks_app.monitor.pages import overview
from tasks_app.pool.runs.heartbeats import take_stacks_asked, write_heartbeat, write_stacks
from tests.dashboard.browser import EVIL, Browser, browser_of, is_inert, shows, text_of, write
from tests.dashboard.test_pages import audit, failed_task, waiting_task


def lives(engine: Engine, owner: str, node: str = "host-a", **more: object) -> None:
    given = {"queues": ["default"], "handlers": ["a", "b"], **more}
    with engine.begin() as connection:
        write_heartbeat(connection, owner=owner, node=node, **given)  # type: ignore[arg-type]


def made_group(engine: Engine) -> int:
    with Session(engine) as session, session.begin():
        members = [NewTask("a"), NewTask("b")]
        return int(create_group(session, members, then=NewTask("sum")).id)


def test_children_and_what_they_run(engine: Engine, browser: Browser) -> None:
    run = {"id": 7, "name": "orders.charge", "seconds": 90.0}
    lives(engine, "host-a/1", running=[run])
    lives(engine, "host-b/2", node="host-b")
    page = browser.get("/workers").text
    shows(page, 'href="/tasks/7">orders.charge</a>', "90.0 s")
    model = browser.get("/api/workers").json()
    assert [node["name"] for node in model["nodes"]] == ["host-a", "host-b"]
    assert model["nodes"][0]["children"][0]["worker"]["running"] == [run]
    shows(text_of(page), "running", "idle")
    assert page.count("<table>") == 1, "all columns stand at the same places"


def test_who_is_silent_and_what_nobody_serves(engine: Engine, browser: Browser) -> None:
    lives(engine, "host-a/1")
    lives(engine, "host-a/2", queues=["mail"])
    aged = "UPDATE task_worker SET seen_at = now() - interval '5 min' WHERE owner = 'host-a/2'"
    write(engine, aged)
    waiting_task(engine, queue="mail")
    model = browser.get("/api/workers").json()
    children = model["nodes"][0]["children"]
    assert [child["silent"] for child in children] == [False, True]
    assert model["unserved"] == ["mail"]
    shows(text_of(browser.get("/workers").text), "No living child serves mail", "silent")


def test_stacks_are_asked_for_and_shown(engine: Engine, browser: Browser) -> None:
    lives(engine, "host-a/1")
    shows(browser.get("/workers").text, 'action="/workers/stacks"')
    asked = browser.act("/workers/stacks", {"worker": "host-a"})
    assert asked.headers["location"] == "/workers/stacks?worker=host-a"
    shows(text_of(browser.get("/workers/stacks?worker=host-a").text), "has not answered")
    said = f"thread MainThread runs task 7 (t)\n{EVIL}"
    with engine.begin() as connection:
        assert take_stacks_asked(connection, ["host-a/1"])
        write_stacks(connection, "host-a/1", said)
    page = browser.get("/workers/stacks").text
    is_inert(page)
    shows(page, "thread MainThread runs task 7 (t)")
    (child,) = browser.get("/api/workers/stacks").json()["children"]
    assert (child["owner"], child["stacks"]) == ("host-a/1", said)
    browser.act("/workers/stacks", {"worker": "nobody"})
    shows(browser.get("/workers").text, "no such worker is alive")
    assert audit(engine) == [("stacks", "local (dashboard)", [])]


def test_without_workers_it_says_how_to_start_one(browser: Browser) -> None:
    page = browser.get("/workers").text
    shows(page, "No worker has sent a heartbeat", "celery -A tasks_app worker")


def test_the_audit_by_who_action_and_task(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = failed_task(engine), failed_task(engine)
    later = waiting_task(engine)
    browser.act(f"/tasks/{first}/requeue")
    browser.act(f"/tasks/{second}/requeue")
    browser.ask("POST", f"/api/tasks/{later}/cancel", json={})

    def ids(query: str) -> list[list[int]]:
        return [line["ids"] for line in browser.get(f"/api/audit?{query}").json()["lines"]]

    assert ids("") == [[later], [second], [first]]
    assert ids("action=requeue") == [[second], [first]]
    assert ids("who=API") == [[later]]
    assert ids(f"task={first}") == [[first]]
    monkeypatch.setattr(overview, "PAGE", 2)
    older = browser.get("/api/audit?who=local").json()["older"]
    assert ids(f"who=local&before={older}") == [[first]]
    assert browser.get("/audit?task=x").status_code == 400
    assert "requeue" in browser.get("/audit").text
    assert "No line among" in browser.get("/audit?who=nobody").text
    assert "requeue by local (dashboard)" in text_of(browser.get(f"/tasks/{first}").text)


def test_groups(engine: Engine, browser: Browser) -> None:
    assert "There are no groups yet" in browser.get("/groups").text
    group_id = made_group(engine)
    assert f'href="/groups/{group_id}"' in browser.get("/groups?open=yes").text
    model = browser.get(f"/api/groups/{group_id}").json()
    assert (model["group"]["total"], model["states"]) == (2, {"PENDING": 2})
    page = text_of(browser.get(f"/groups/{group_id}").text)
    assert "0 succeeded, 0 failed of 2; 2 left" in page
    browser.act(f"/groups/{group_id}/cancel")
    assert "2 cancelled, 0 asked to stop." in browser.get("/groups").text
    assert [line[:2] for line in audit(engine)] == [("cancel", "local (dashboard)")]
    assert browser.get(f"/api/groups/{group_id}").json()["states"] == {"CANCELLED": 2}
    assert browser.get("/groups/4711").status_code == 404
    assert browser.act("/groups/4711/cancel").status_code == 404


def test_markup_is_inert_and_viewers_get_no_buttons(engine: Engine, settings: Settings) -> None:
    viewer = browser_of(settings, "viewer")
    run = {"id": 7, "name": EVIL, "seconds": 1.0}
    lives(engine, EVIL, node=EVIL, queues=[EVIL], handlers=[EVIL], running=[run])
    group_id = made_group(engine)
    write(engine, "INSERT INTO task_audit (who, action) VALUES (:evil, 'requeue')", evil=EVIL)
    for path in ("/workers", "/audit", "/groups", f"/groups/{group_id}"):
        page = viewer.get(path)
        assert page.status_code == 200, path
        is_inert(page.text, path)
        assert 'method="post"' not in page.text, path
