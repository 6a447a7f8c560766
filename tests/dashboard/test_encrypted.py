"""Encrypted values on the pages: hidden, but from an admin of a process that has the keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tasks_app import Settings, TaskContext, create_task, handler
from tasks_app.domain.encryption import new_key
from tasks_app.runtime.encryption.encryption import encryption
from tasks_app.runtime.handlers.registry import HANDLERS
from tests.dashboard.browser import Browser, dashboard
from tests.dashboard.test_pages import waiting_task


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @handler("edit.secret")
    def edit_secret(ctx: TaskContext, payload: dict[str, Any]) -> None: ...

    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", f"k1:{new_key()}")
    monkeypatch.setenv("TASKS_APP_ENCRYPTED_TASKS", "edit.secret")
    encryption.cache_clear()
    yield
    encryption.cache_clear()
    del HANDLERS.specs["edit.secret"]


@pytest.fixture
def task_id(engine: Engine) -> int:
    with engine.begin() as connection:
        return create_task(connection, "edit.secret", {"card": "canary"})


def test_pages_say_that_it_is_encrypted(browser: Browser, task_id: int) -> None:
    for path in (f"/tasks/{task_id}", f"/api/tasks/{task_id}", "/tasks"):
        page = browser.get(path).text
        assert "canary" not in page
        assert "v1.k1" not in page
    assert browser.get(f"/api/tasks/{task_id}").json()["task"]["payload"] == "encrypted (key k1)"


def test_an_admin_may_decrypt(browser: Browser, task_id: int) -> None:
    assert f"/tasks/{task_id}/decrypted" in browser.get(f"/tasks/{task_id}").text
    answer = browser.get(f"/tasks/{task_id}/decrypted")
    assert "canary" in answer.text
    assert "no-store" in answer.headers["cache-control"]
    assert "canary" not in browser.get(f"/tasks/{task_id}").text


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_nobody_else_may(settings: Settings, task_id: int, role: str) -> None:
    other = Browser(dashboard(settings, role=lambda _: role, who=lambda _: "bob"))
    assert other.get(f"/tasks/{task_id}/decrypted").status_code == 403
    assert "/decrypted" not in other.get(f"/tasks/{task_id}").text
    assert other.get(f"/tasks/{task_id}/edit").status_code == 403


def test_without_the_key_an_admin_sees_that_it_is_encrypted(
    browser: Browser, task_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", f"k2:{new_key()}")
    encryption.cache_clear()
    page = browser.get(f"/tasks/{task_id}/decrypted").text
    assert "encrypted (key k1)" in page
    assert browser.get(f"/tasks/{task_id}/edit").status_code == 409


def test_what_an_admin_edits_stays_encrypted(
    engine: Engine, browser: Browser, task_id: int
) -> None:
    assert "canary" in browser.get(f"/tasks/{task_id}/edit").text
    browser.act(f"/tasks/{task_id}/edit", {"payload": '{"card": "canary2"}'})
    with engine.connect() as connection:
        query = text("SELECT payload::text FROM task_all WHERE id = :id")
        assert "canary" not in connection.execute(query, {"id": task_id}).scalar_one()
    assert "canary2" in browser.get(f"/tasks/{task_id}/decrypted").text


def test_a_task_in_plain_has_nothing_to_decrypt(engine: Engine, browser: Browser) -> None:
    plain = waiting_task(engine, name="other", payload={"n": 1})
    assert "/decrypted" not in browser.get(f"/tasks/{plain}").text
