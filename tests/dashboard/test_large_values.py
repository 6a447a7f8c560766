"""Payloads and results that are kept outside of their rows: pages tell their size and load none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from tasks_app import create_task
from tasks_app.domain.large_values.store import RESULT, LargePayload
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.large_values import write_value
from tasks_app.runtime.large_values import large_values
from tests.dashboard.browser import Browser
from tests.factory import claimed_task, ending

SAID = "kept outside of the row (100011 bytes)"
PAYLOADS = text("SELECT payload::text FROM task_pending")


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TASKS_APP_LARGE_VALUES", "database")
    large_values.cache_clear()
    yield
    large_values.cache_clear()


@pytest.fixture
def task_id(engine: Engine) -> int:
    with engine.begin() as connection:
        return create_task(connection, "t", {"text": "x" * 100_000})


def test_pages_tell_the_size_of_a_payload(browser: Browser, task_id: int) -> None:
    for path in (f"/tasks/{task_id}", f"/api/tasks/{task_id}"):
        page = browser.get(path)
        assert page.status_code == 200
        assert SAID in page.text
        assert "xxxx" not in page.text
    assert browser.get("/tasks").status_code == 200
    assert "xxxx" not in browser.get("/tasks/export.jsonl").text


def test_pages_tell_the_size_of_a_result(engine: Engine, browser: Browser) -> None:
    value = LargePayload.of('{"text": "' + "x" * 99_999 + '"}', encrypted=False)
    with engine.begin() as connection:
        task = claimed_task(connection)
        write_value(connection, value, task.fence.task_id, RESULT)
        settle_one(connection, ending(task, Event.SUCCEED, result=str(value)))
    for path in (f"/tasks/{task.fence.task_id}", f"/api/tasks/{task.fence.task_id}"):
        page = browser.get(path).text
        assert SAID in page
        assert "xxxx" not in page


def test_a_large_payload_is_not_edited(engine: Engine, browser: Browser, task_id: int) -> None:
    with engine.connect() as connection:
        before = connection.execute(PAYLOADS).scalar_one()
    look = browser.get(f"/tasks/{task_id}/edit")
    save = browser.act(f"/tasks/{task_id}/edit", {"payload": '{"n": 1}'})
    api = browser.ask("POST", f"/api/tasks/{task_id}/edit", json={"payload": {"n": 1}})
    for answer in (look, save, api):
        assert answer.status_code == 409
        assert "Its payload is too large to be edited." in answer.text
    with engine.connect() as connection:
        assert connection.execute(PAYLOADS).scalar_one() == before
