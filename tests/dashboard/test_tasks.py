"""The list of tasks: filters, export, what is chosen for a bulk; and find, by any name."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from tasks_app import Flow, NewTask, Settings, create_flow, create_group, create_schedule
from tasks_app.monitor.pages import tasks as tasks_page
from tasks_app.pool.runs.heartbeats import write_heartbeat
from tasks_app.pool.statistics.parts import CountPart, write_parts
from tasks_app.runtime.api.queues import pause_queue
from tests.dashboard.browser import Browser, browser_of, dashboard, write
from tests.dashboard.test_errors import fails, fingerprint_of
from tests.dashboard.test_operations import lives
from tests.dashboard.test_pages import failed_task, waiting_task
from tests.factory import pending_task
from tests.pool.test_statistics import left_no_row


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


def test_a_step_that_waits_says_so_and_is_not_run_now(engine: Engine, browser: Browser) -> None:
    flow = Flow("order")
    flow.step("ship", "t", needs=flow.step("pay", "t"))
    with engine.begin() as connection:
        ship = create_flow(connection, flow).task_ids["ship"]
    listed, shown = browser.get("/tasks").text, browser.get(f"/tasks/{ship}").text
    assert "waits for its needs</td>" in listed
    assert "when its needs are met" in shown
    assert "It waits for step pay (task " in shown
    assert not re.search("held<|9899", listed + shown)
    refused = browser.ask("POST", f"/api/tasks/{ship}/run-now", json={})
    assert "It waits for step pay (task " in refused.text


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
    aged = "UPDATE task_pending SET created_at = now() - interval '2 hours' WHERE id = :id"
    write(engine, aged, id=old)
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
    exported = browser.get("/tasks/export.jsonl?name=n").text
    lines = [json.loads(line) for line in exported.splitlines()]
    assert [line["id"] for line in lines] == ids[::-1]
    monkeypatch.setattr(tasks_page, "MOST_EXPORTED", 3)
    assert len(browser.get("/tasks/export.jsonl").text.splitlines()) == 3
    assert browser.get("/tasks/export.xml").status_code == 404


def test_what_matches_is_offered_to_a_bulk(engine: Engine, browser: Browser) -> None:
    failed_task(engine, "no funds", name="n")
    page = browser.get("/tasks?name=n&error=funds").text
    link = "/bulks/new?action=requeue&amp;name=n&amp;error_text=funds"
    assert link in page
    assert "Requeue 1 task?" in browser.get(link.replace("&amp;", "&")).text
    for query in ("", "state=FAILED", "name=n&since=1h"):
        assert "/bulks/new?action" not in browser.get(f"/tasks?{query}").text, query


def test_viewers_choose_nothing(engine: Engine, settings: Settings) -> None:
    failed_task(engine)
    page = browser_of(settings, "viewer").get("/tasks?name=t").text
    assert "checkbox" not in page
    assert "/bulks/new" not in page


def test_one_look_goes_through_so_many_rows_and_says_where_to_go_on(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_page, "LOOKED_AT", 3)
    rare = pending_task(connection, "rare")
    ids = [pending_task(connection, "common") for _ in range(5)]
    first = tasks_page.find_tasks(connection, {"name": "rare"}, before=None, most=2)
    assert (first.rows, first.number, first.whole, first.below) == ((), 0, False, ids[2])
    second = tasks_page.find_tasks(connection, {"name": "rare"}, before=first.below, most=2)
    assert ([row.id for row in second.rows], second.whole, second.below) == ([rare], False, rare)
    third = tasks_page.find_tasks(connection, {"name": "rare"}, before=second.below, most=2)
    assert (third.rows, third.whole, third.below) == ((), True, None)
    monkeypatch.setattr(tasks_page, "LOOKED_AT", 9)
    many = tasks_page.find_tasks(connection, {"name": "common"}, before=None, most=2)
    assert ([row.id for row in many.rows], many.number, many.below) == (ids[:2:-1], 5, ids[3])


def test_an_empty_page_goes_on(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_page, "LOOKED_AT", 2)
    waiting_task(engine, name="rare")
    below, _ = (waiting_task(engine, name="common") for _ in range(2))
    page = browser.get("/tasks?name=rare").text
    assert f"No task from the newest down to {below} fits" in page
    assert f"/tasks?before={below}&amp;name=rare" in page
    assert browser.get(f"/api/tasks?name=rare&before={below}").json()["number"] == 1


def test_a_task_that_waits_is_looked_at_again(engine: Engine, browser: Browser) -> None:
    waiting, over = waiting_task(engine), failed_task(engine)
    live = f'hx-get="/tasks/{waiting}" hx-trigger="every 2s"'
    assert live in browser.get(f"/tasks/{waiting}").text
    assert "every 2s" not in browser.get(f"/tasks/{over}").text
    part = browser.get(f"/tasks/{waiting}", headers={"hx-request": "true"}).text
    assert "<html" not in part
    assert "PENDING" in part


def remarks(browser: Browser) -> list[str]:
    model = browser.get("/api/tasks").json()
    return [model["remarks"][str(row["id"])] for row in reversed(model["rows"])]


def test_what_cannot_run_has_a_remark(engine: Engine, browser: Browser, settings: Settings) -> None:
    """Its queue stands still, nobody serves it, or nobody there knows the name."""
    with engine.begin() as connection:
        write_heartbeat(connection, owner="w", node="n", queues=["default", "mail"], handlers=["t"])
        pause_queue(connection, "mail", "the server moves")
    for name, queue in (("t", "mail"), ("t", "post"), ("new", "default"), ("t", "default")):
        waiting_task(engine, name=name, queue=queue)
    for queue in ("default", "post"):
        waiting_task(engine, name="new", queue=queue, delay=3600)

    assert remarks(browser) == [
        "its queue is paused: the server moves",
        "no live worker serves its queue",
        "no live worker of its queue knows its name",
        *("", "", ""),
    ]
    assert "its queue is paused: the server moves</td>" in browser.get("/tasks").text
    with engine.begin() as connection:
        pause_queue(connection, "*")
    assert remarks(Browser(dashboard(settings))) == ["every queue is paused"] * 6


def test_a_pool_or_state_that_is_none_is_refused(browser: Browser) -> None:
    for wrong in ("pool=failed", "state=DONE", "since=3h"):
        answer = browser.get(f"/api/tasks?{wrong}")
        assert (answer.status_code, "Correct the address" in answer.text) == (400, True), wrong


def place(browser: Browser, asked: str) -> str:
    return str(browser.get("/find", params={"q": asked}).headers.get("location"))


def test_what_is_called_so(engine: Engine, browser: Browser) -> None:
    task_id = waiting_task(engine, name="orders.pay", biz_key="order:42", queue="money.eu")
    failed = fails(engine, "shop.Declined", "no", name="orders.charge")
    lives(engine, "host/1", queues=["post"], handlers=["mail.send", "orders.pay"])
    with Session(engine) as session, session.begin():
        create_schedule(session, "nightly", "report", every="1h")
    fingerprint = fingerprint_of(browser, failed)
    for asked, where in (
        (str(task_id), f"/tasks/{task_id}"),
        ("order:42", "/tasks?biz_key=order%3A42"),
        ("mail.send", "/tasks?name=mail.send"),
        ("il.se", "/tasks?name=mail.send"),
        ("money.eu", "/queues/money.eu"),
        ("POST", "/queues/post"),
        ("nightly", "/schedules/nightly"),
        ("report", "/tasks?name=report"),
        (fingerprint, f"/errors/{fingerprint}"),
    ):
        assert place(browser, asked) == where, asked


def test_what_may_be_meant_is_listed(engine: Engine, browser: Browser) -> None:
    with Session(engine) as session, session.begin():
        group = create_group(session, [NewTask("a.one"), NewTask("a.two")])
    lives(engine, "host/1", handlers=["a.one", "a.two"], queues=["a"])
    page = browser.get("/find?q=a.").text
    assert 'href="/tasks?name=a.one"' in page
    assert 'href="/tasks?name=a.two"' in page
    assert place(browser, "a") == "/queues/a"
    hits = browser.get(f"/api/find?q={group.id}").json()["hits"]
    assert {"kind": "group", "key": str(group.id), "about": "open", "exact": True} in hits


@pytest.mark.parametrize("asked", ["", "nothing is so", "%", "9" * 30, "'"])
def test_nothing_says_what_to_do(browser: Browser, asked: str) -> None:
    answer = browser.get("/find", params={"q": asked})
    assert answer.status_code == 200
    assert ("Nothing has this id" if asked else "Enter an id") in answer.text


def test_pages_tell_of_successes_that_left_no_row(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        left_no_row(connection, 1_200)
    for page in ("/tasks", "/tasks?state=SUCCEEDED", "/queues/q", "/tasks/7", "/find?q=7"):
        assert "1,200 tasks of" in browser.get(page).text, page
    assert browser.get("/api/tasks").json()["unkept"]["number"] == 1_200
    assert browser.get("/api/tasks?state=FAILED").json()["unkept"] is None


def test_a_task_says_what_it_weighs(engine: Engine, browser: Browser) -> None:
    light = waiting_task(engine)
    task_id = waiting_task(engine, limit_key="model", weight=1500)
    assert "<dt>Weight</dt><dd>1500</dd>" in browser.get(f"/tasks/{task_id}").text
    assert "<dt>Weight</dt>" not in browser.get(f"/tasks/{light}").text
    assert browser.get(f"/api/tasks/{task_id}").json()["task"]["weight"] == 1500


def test_a_task_in_line_says_when_it_probably_starts(engine: Engine, browser: Browser) -> None:
    lives(engine, "host-a/1", handlers=["t"])
    now = datetime.now(UTC)
    ids = [waiting_task(engine, now=now - timedelta(minutes=20)) for _ in range(3)]
    minutes = range(int(now.timestamp()) // 60 - 20, int(now.timestamp()) // 60)
    parts = [CountPart(minute, "t", "default", 1, 2, 10**7, 0, (0,), (0,)) for minute in minutes]
    with engine.begin() as connection:
        write_parts(connection, "slot", parts)
    assert "it probably starts in 90 s (p50), within" in browser.get(f"/tasks/{ids[2]}").text
    told = browser.get(f"/api/tasks/{ids[2]}").json()["explanation"]
    assert (told["estimate"]["a_minute"], told["estimate"]["minutes"]) == (2, 15)
    wait = datetime.fromisoformat(told["estimate"]["p50"]) - datetime.fromisoformat(told["at"])
    assert wait == timedelta(seconds=90)
