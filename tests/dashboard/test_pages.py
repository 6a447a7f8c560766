"""What pages show of a real database, and what their buttons do to it."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app import Settings
from tasks_app.dashboard.reader import PageReader
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.monitor.pages import queues as queues_page
from tasks_app.monitor.pages import tasks as tasks_page
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.run_records import Note, save_checkpoint
from tests.dashboard.browser import (
    EVIL,
    Browser,
    browser_of,
    dashboard,
    is_inert,
    is_one_sentence,
    one,
    shows,
    text_of,
    write,
)
from tests.factory import claimed_task, ending, pending_task


def failed_task(engine: Engine, message: str = "boom", **options: object) -> int:
    with engine.begin() as connection:
        task = claimed_task(connection, **options)
        cause = Cause("shop.CardDeclined", message, f"Traceback: {message}")
        settle_one(connection, ending(task, Event.FAIL, cause=cause))
        return int(task.fence.task_id)


def waiting_task(engine: Engine, **options: object) -> int:
    with engine.begin() as connection:
        return int(pending_task(connection, **options))


def audit(engine: Engine) -> list[tuple[str, str, list[int]]]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT action, who, ids FROM task_audit ORDER BY id"))
        return [(row.action, row.who, row.ids) for row in rows]


def test_overview_counts_by_queue_and_name(engine: Engine, browser: Browser) -> None:
    for _ in range(3):
        waiting_task(engine, name="orders.invoice", queue="default")
    waiting_task(engine, name="mail.send", queue="mail", delay=3600)
    failed_task(engine, name="orders.charge")
    model = browser.get("/api/overview").json()
    assert model["pending"] == {"number": 4, "more": False}
    assert (model["due"]["number"], model["barred"]["number"]) == (3, 3), "nobody knows them"
    assert model["oldest_due_at"] is None
    assert model["failed"]["number"] == 1
    line = next(each for each in model["lines"] if each["name"] == "orders.invoice")
    assert (line["queue"], line["pending"], line["due"], line["running"]) == ("default", 3, 3, 0)
    page = text_of(browser.get("/").text)
    shows(page, "orders.invoice", "served by no worker", "3 could not run", "nothing could run")


def test_an_empty_pool_says_what_to_do(browser: Browser) -> None:
    assert "No task waits" in browser.get("/").text
    assert "There are no tasks yet" in browser.get("/tasks").text
    assert "leave one out" in browser.get("/tasks?name=nobody").text


def test_a_long_queue_is_not_counted_out(
    engine: Engine, browser: Browser, settings: Settings
) -> None:
    write(
        engine,
        "INSERT INTO task_pending (name, queue, payload, state, due_at, scan_at)"
        " SELECT 'much', 'big', '{}', 'PENDING', now(), now() FROM generate_series(1, 10050)",
    )
    found = browser.get("/api/overview").json()["pending"]
    assert found == {"number": queues_page.MOST + 1, "more": True}
    assert "10,000+ match" in browser.get("/tasks?queue=big").text
    assert browser.get("/api/tasks?queue=big").json()["number"] == tasks_page.MOST


def test_filters_and_pages(engine: Engine, browser: Browser) -> None:
    made = [waiting_task(engine, name="n", biz_key="order:1") for _ in range(tasks_page.PAGE + 5)]
    other = waiting_task(engine, name="other", queue="mail")
    first = browser.get("/api/tasks?name=n").json()
    assert [row["id"] for row in first["rows"]] == made[::-1][: tasks_page.PAGE]
    second = browser.get(f"/api/tasks?name=n&before={first['older']}").json()
    assert [row["id"] for row in second["rows"]] == made[:5][::-1]
    assert second["older"] is None
    assert first["number"] == len(made)
    queries = "queue=mail name=other state=PENDING&name=other pool=pending&queue=mail"
    for query in queries.split():
        assert [row["id"] for row in browser.get(f"/api/tasks?{query}").json()["rows"]] == [other]
    bad = failed_task(engine, "card type", name="charge")
    assert [r["id"] for r in browser.get("/api/tasks?error=CARD").json()["rows"]] == [bad]
    assert f"before={first['older']}&amp;name=n" in browser.get("/tasks?name=n").text


def test_task_page(engine: Engine, browser: Browser) -> None:
    payload = {"order": 42, "card": {"api_token": "tok_secret", "brand": "amex"}}
    task_id = failed_task(engine, "no amex", task_id=waiting_task(engine, payload=payload))
    page = browser.get(f"/tasks/{task_id}").text
    assert "tok_secret" not in page
    shows(page, "amex", "Traceback: no amex", "shop.CardDeclined")
    model = browser.get(f"/api/tasks/{task_id}").json()
    assert model["task"]["payload"]["card"]["api_token"] == "***"
    assert model["task"]["state"] == "FAILED"


def test_a_task_page_names_kept_steps_without_their_results(
    engine: Engine, browser: Browser
) -> None:
    with engine.begin() as connection:
        task = claimed_task(connection)
        note = Note(None, changed=False, fraction=None, note=None, step="parcel", result='"amex"')
        save_checkpoint(connection, task.fence, note)
    page = browser.get(f"/tasks/{task.task_id}").text
    shows(page, "Step parcel")
    assert "amex" not in page
    assert list(browser.get(f"/api/tasks/{task.task_id}").json()["steps"]) == ["parcel"]


def test_requeue(engine: Engine, browser: Browser) -> None:
    task_id = failed_task(engine)
    answer = browser.act(f"/tasks/{task_id}/requeue")
    assert answer.headers["location"] == f"/tasks/{task_id}"
    page = browser.get(f"/tasks/{task_id}").text
    assert "PENDING" in page
    assert "Done: requeue." in page
    assert "Done: requeue." not in browser.get(f"/tasks/{task_id}").text, "it is said once"
    assert audit(engine) == [("requeue", "local (dashboard)", [task_id])]
    again = browser.act(f"/tasks/{task_id}/requeue")
    assert "Nothing was changed" in browser.get(again.headers["location"]).text
    assert len(audit(engine)) == 1


def test_cancel_and_run_now(engine: Engine, browser: Browser) -> None:
    later = waiting_task(engine, delay=3600)
    browser.act(f"/tasks/{later}/run-now")
    assert "Done: run-now" in browser.get("/tasks").text
    assert one(engine, "SELECT due_at <= now() FROM task_pending WHERE id = :id", id=later)
    browser.act(f"/tasks/{later}/run-now")
    assert "Nothing was changed" in browser.get("/tasks").text
    browser.act(f"/tasks/{later}/cancel")
    assert browser.get(f"/api/tasks/{later}").json()["task"]["state"] == "CANCELLED"
    assert [line[0] for line in audit(engine)] == ["run-now", "cancel"]


def test_a_running_task_may_be_killed_by_the_page_and_the_api(
    engine: Engine, browser: Browser
) -> None:
    with engine.begin() as connection:
        one_id, other = (claimed_task(connection).task_id for _ in range(2))
    grace = """SELECT extract(epoch FROM kill_at - cancel_requested_at)
        FROM task_pending WHERE id = :id"""
    shows(browser.get(f"/tasks/{one_id}").text, "Kill …", 'name="kill_after" value="5s"')
    browser.act(f"/tasks/{one_id}/cancel", {"kill_after": "5s"})
    browser.ask("POST", f"/api/tasks/{other}/cancel", json={"kill_after": "0s"})
    assert [one(engine, grace, id=i) for i in (one_id, other)] == [5, 0]
    refused = browser.ask("POST", f"/api/tasks/{other}/cancel", json={"kill_after": "soon"})
    assert refused.status_code == 400


def test_unblock(engine: Engine, browser: Browser) -> None:
    first = failed_task(engine)
    waiting_task(engine, order_key="card:1")
    write(engine, "UPDATE task_error SET order_key = 'card:1' WHERE id = :id", id=first)
    browser.act(f"/tasks/{first}/unblock")
    assert "The tasks behind it go on." in browser.get("/tasks").text
    assert [line[0] for line in audit(engine)] == ["unblock"]


def test_a_key_that_is_taken_refuses_in_words(engine: Engine, browser: Browser) -> None:
    task_id = failed_task(engine, task_id=waiting_task(engine, unique_key="u"))
    waiting_task(engine, unique_key="u")
    is_one_sentence(browser.act(f"/tasks/{task_id}/requeue"), 409)


def test_viewers_get_no_buttons(engine: Engine, settings: Settings) -> None:
    task_id = failed_task(engine)
    viewer = browser_of(settings, "viewer")
    assert 'method="post"' not in viewer.get(f"/tasks/{task_id}").text


def test_markup_is_inert(engine: Engine, browser: Browser) -> None:
    task_id = failed_task(
        engine, EVIL, task_id=waiting_task(engine, payload={EVIL: EVIL}, biz_key=EVIL)
    )
    write(engine, "UPDATE task_error SET name = :evil, queue = :evil, owner = :evil", evil=EVIL)
    for path in ("/", "/tasks", f"/tasks/{task_id}", f"/tasks?name={EVIL}", f"/nope/{EVIL}"):
        browser.cookies["tasks_app_told"] = quote("+" + EVIL)
        is_inert(browser.get(path).text, path)
    shown = browser.get(f"/api/tasks/{task_id}")
    assert shown.headers["content-type"] == "application/json"
    assert shown.json()["task"]["name"] == EVIL


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((f"/tasks{rest}", 400) for rest in ("/x", "/99999999999999999999", "?before=x")),
        *(("/tasks?name=%00", 400), ("/api/tasks/x", 400)),
        *(("/batches?status=x", 400), ("/batches/x", 400), ("/batches/4711", 404)),
        *(("/errors/xyz", 400), ("/errors?since=2y", 400), ("/errors?known=perhaps", 400)),
        *(("/errors?name=%00", 400), ("/errors/0123456789abcdef?before=yesterday", 400)),
        ("/errors/0123456789abcdef?before=2026-01-01T00:00:00", 400),
    ],
)
def test_wrong_input_is_one_sentence(browser: Browser, path: str, status: int) -> None:
    answer = browser.get(path)
    is_one_sentence(answer, status)
    if path.startswith("/api"):
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_database_that_is_down_gives_a_sentence(settings: Settings) -> None:
    away = Settings(database_url="postgresql+psycopg://u:secret@127.0.0.1:1/x")
    browser = Browser(dashboard(away))
    for path in ("/", "/tasks", "/tasks/1", "/api/overview"):
        answer = browser.get(path)
        is_one_sentence(answer, 503)
        assert "The database" in answer.text
        assert "secret" not in answer.text


def test_reads_cannot_write_and_end_early(engine: Engine, settings: Settings) -> None:
    reader = PageReader(settings.database)
    try:
        with pytest.raises(DBAPIError, match="read-only transaction"):
            reader.read("w", lambda c: c.execute(text("DELETE FROM task_audit")))
        shown = reader.read("t", lambda c: c.execute(text("SHOW statement_timeout")).scalar_one())
        assert shown == "2s"
        assert reader.engine.pool.size() == 4
    finally:
        reader.close()


def test_viewers_share_a_read(engine: Engine, settings: Settings) -> None:
    reader, asked = PageReader(settings.database), []
    for _ in range(3):
        reader.read("same", asked.append, keep_s=60)
    reader.forget()
    reader.read("same", asked.append, keep_s=60)
    assert len(asked) == 2
    reader.close()


def test_json_is_not_sent_twice(engine: Engine, browser: Browser) -> None:
    task_id = failed_task(engine)
    first = browser.get(f"/api/tasks?before={task_id + 1}")
    tag = first.headers["etag"]
    json.loads(first.text)
    again = browser.get(f"/api/tasks?before={task_id + 1}", headers={"if-none-match": tag})
    assert again.status_code == 304
