"""The list of tasks: filters, export, what is chosen for a bulk."""

from __future__ import annotations

import csv
import io
import json

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tasks_app import NewTask, Settings, create_group, create_schedule
from tasks_app.monitor.pages import tasks as tasks_page
from tests.dashboard.browser import Browser, dashboard
from tests.dashboard.test_pages import failed_task, waiting_task


def found(browser: Browser, query: str) -> list[int]:
    answer = browser.get(f"/api/tasks?{query}")
    assert answer.status_code == 200, answer.text
    return [row["id"] for row in answer.json()["rows"]]


def test_by_a_part_of_the_payload(engine: Engine, browser: Browser) -> None:
    task_id = waiting_task(engine, payload={"customer": "Ada Lovelace"})
    waiting_task(engine, payload={"customer": "Grace"})
    assert found(browser, "payload=ada+love") == [task_id]


def test_by_group(engine: Engine, browser: Browser) -> None:
    waiting_task(engine)
    with Session(engine) as session, session.begin():
        group = create_group(session, [NewTask("a"), NewTask("b")])
    assert len(found(browser, f"group={group.id}")) == 2
    assert browser.get("/tasks?group=x").status_code == 400


def test_by_schedule(engine: Engine, browser: Browser) -> None:
    task_id = waiting_task(engine)
    waiting_task(engine)
    with Session(engine) as session, session.begin():
        create_schedule(session, "nightly", "report", every="1d")
        fired = """
            INSERT INTO task_schedule_fire (schedule_id, fire_at, outcome, task_id)
            SELECT id, now(), 'made', :task_id FROM task_schedule
        """
        session.execute(text(fired), {"task_id": task_id})
    assert found(browser, "schedule=nightly") == [task_id]
    assert found(browser, "schedule=daily") == []


def test_by_the_time_of_creation(engine: Engine, browser: Browser) -> None:
    old, new = waiting_task(engine), waiting_task(engine)
    with engine.begin() as connection:
        aged = text(
            "UPDATE task_pending SET created_at = now() - interval '2 hours' WHERE id = :id"
        )
        connection.execute(aged, {"id": old})
    assert found(browser, "since=1h") == [new]
    assert found(browser, "since=24h") == [new, old]
    assert browser.get("/tasks?since=1y").status_code == 400


def test_export(engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_page, "EXPORTED", 2)
    ids = [waiting_task(engine, name="n", biz_key="=1+1") for _ in range(5)]
    waiting_task(engine, name="other")
    answer = browser.get("/tasks/export.csv?name=n")
    assert "attachment" in answer.headers["content-disposition"]
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(line["id"]) for line in lines] == ids[::-1]
    assert {line["biz_key"] for line in lines} == {"'=1+1"}, "no formula"
    lines = [
        json.loads(line) for line in browser.get("/tasks/export.jsonl?name=n").text.splitlines()
    ]
    assert [line["id"] for line in lines] == ids[::-1]
    monkeypatch.setattr(tasks_page, "MOST_EXPORTED", 3)
    assert len(browser.get("/tasks/export.jsonl").text.splitlines()) == 3
    assert browser.get("/tasks/export.xml").status_code == 404


def test_what_matches_is_offered_to_a_bulk(engine: Engine, browser: Browser) -> None:
    failed_task(engine, "no funds", name="n")
    page = browser.get("/tasks?name=n&error=funds").text
    link = "/bulks/new?action=requeue&amp;name=n&amp;error_text=funds"
    assert link in page
    assert "Requeue 1 tasks?" in browser.get(link.replace("&amp;", "&")).text
    for query in ("", "state=FAILED", "name=n&since=1h"):
        assert "/bulks/new?action" not in browser.get(f"/tasks?{query}").text, query


def test_viewers_choose_nothing(engine: Engine, settings: Settings) -> None:
    failed_task(engine)
    viewer = Browser(dashboard(settings, role=lambda _: "viewer", who=lambda _: "eve"))
    page = viewer.get("/tasks?name=t").text
    assert "checkbox" not in page
    assert "/bulks/new" not in page
