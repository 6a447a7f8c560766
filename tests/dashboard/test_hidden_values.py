"""What pages leave out: values that are encrypted, under a masked path, or too large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from tasks_app import (
    NewTask,
    Settings,
    TaskContext,
    create_group,
    create_schedule,
    create_task,
    handler,
)
from tasks_app.domain.encryption import new_key
from tasks_app.domain.large_values.store import RESULT, LargePayload
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.large_values import write_value
from tasks_app.runtime.encryption.encryption import encryption
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.large_values import large_values
from tests.dashboard.browser import Browser, browser_of, one
from tests.dashboard.test_pages import waiting_task
from tests.factory import claimed_task, ending


@pytest.fixture
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
def secret_id(engine: Engine, keys: None) -> int:
    with engine.begin() as connection:
        return create_task(connection, "edit.secret", {"card": "canary"})


def test_pages_say_that_a_payload_is_encrypted(browser: Browser, secret_id: int) -> None:
    for path in (f"/tasks/{secret_id}", f"/api/tasks/{secret_id}", "/tasks"):
        page = browser.get(path).text
        assert "canary" not in page
        assert "v1.k1" not in page
    assert browser.get(f"/api/tasks/{secret_id}").json()["task"]["payload"] == "encrypted (key k1)"


def test_an_admin_may_decrypt(browser: Browser, secret_id: int) -> None:
    assert f"/tasks/{secret_id}/decrypted" in browser.get(f"/tasks/{secret_id}").text
    answer = browser.get(f"/tasks/{secret_id}/decrypted")
    assert "canary" in answer.text
    assert "no-store" in answer.headers["cache-control"]
    assert "canary" not in browser.get(f"/tasks/{secret_id}").text


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_nobody_else_may(settings: Settings, secret_id: int, role: str) -> None:
    other = browser_of(settings, role)
    assert other.get(f"/tasks/{secret_id}/decrypted").status_code == 403
    assert "/decrypted" not in other.get(f"/tasks/{secret_id}").text
    assert other.get(f"/tasks/{secret_id}/edit").status_code == 403


def test_without_the_key_an_admin_sees_that_it_is_encrypted(
    browser: Browser, secret_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", f"k2:{new_key()}")
    encryption.cache_clear()
    page = browser.get(f"/tasks/{secret_id}/decrypted").text
    assert "encrypted (key k1)" in page
    assert browser.get(f"/tasks/{secret_id}/edit").status_code == 409


def test_what_admins_edit_stays_encrypted(engine: Engine, browser: Browser, secret_id: int) -> None:
    assert "canary" in browser.get(f"/tasks/{secret_id}/edit").text
    browser.act(f"/tasks/{secret_id}/edit", {"payload": '{"card": "canary2"}'})
    assert "canary" not in one(engine, "SELECT payload::text FROM task_all")
    assert "canary2" in browser.get(f"/tasks/{secret_id}/decrypted").text


@pytest.mark.usefixtures("keys")
def test_a_task_in_plain_has_nothing_to_decrypt(engine: Engine, browser: Browser) -> None:
    plain = waiting_task(engine, name="other", payload={"n": 1})
    assert "/decrypted" not in browser.get(f"/tasks/{plain}").text


PAYLOAD = {"order": 1, "card": {"number": "canary-4711"}}
QUOTES = Cause("ValueError", "canary-4711 is refused")


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_MASKED_PATHS", "card.number,order")


@pytest.mark.usefixtures("rules")
def test_pages_and_the_api_hide_a_masked_path(browser: Browser, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = create_task(connection, "t", PAYLOAD)
        create_schedule(connection, "s", "t", PAYLOAD, every="1h")
    for path in (f"/tasks/{task_id}", f"/api/tasks/{task_id}", "/schedules/s", "/api/schedules/s"):
        page = browser.get(path)
        assert page.status_code == 200
        assert "canary" not in page.text
        assert "***" in page.text


@pytest.mark.test_all
@pytest.mark.usefixtures("rules")
def test_texts_that_were_stored_before_the_rule_are_hidden_too(
    browser: Browser, engine: Engine
) -> None:
    with engine.begin() as connection:
        group = create_group(connection, [NewTask("t", PAYLOAD)])
        failed = claimed_task(connection, group.task_ids[0])
        settle_one(connection, ending(failed, Event.FAIL, cause=QUOTES))
        retried = claimed_task(connection, payload=PAYLOAD)
        settle_one(connection, ending(retried, Event.RETRY, cause=QUOTES))
    cause = one(engine, "SELECT encode(fingerprint, 'hex') FROM task_error")
    waiting_task(engine, name="other", biz_key=cause)

    shown = {
        *("/tasks", "/api/tasks", "/tasks/export.csv", "/tasks/export.jsonl"),
        *("/errors", "/api/errors", f"/errors/{cause}", f"/api/errors/{cause}"),
        *("/", "/api/overview", f"/find?q={cause}"),
        *(f"/groups/{group.id}", f"/api/groups/{group.id}"),
        *(f"{at}/tasks/{each.fence.task_id}" for at in ("", "/api") for each in (failed, retried)),
    }
    for path in sorted(shown):
        page = browser.get(path)
        assert page.status_code == 200, path
        assert "canary" not in page.text, path
        assert "*** is refused" in page.text, path


SAID = "kept outside of the row (100011 bytes)"
PAYLOADS = "SELECT payload::text FROM task_pending"


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TASKS_APP_LARGE_VALUES", "database")
    large_values.cache_clear()
    yield
    large_values.cache_clear()


@pytest.fixture
def large_id(engine: Engine, outside: None) -> int:
    with engine.begin() as connection:
        return create_task(connection, "t", {"text": "x" * 100_000})


def test_pages_tell_the_size_of_a_payload(browser: Browser, large_id: int) -> None:
    for path in (f"/tasks/{large_id}", f"/api/tasks/{large_id}"):
        page = browser.get(path)
        assert page.status_code == 200
        assert SAID in page.text
        assert "xxxx" not in page.text
    assert browser.get("/tasks").status_code == 200
    assert "xxxx" not in browser.get("/tasks/export.jsonl").text


@pytest.mark.usefixtures("outside")
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


def test_a_large_payload_is_not_edited(engine: Engine, browser: Browser, large_id: int) -> None:
    before = one(engine, PAYLOADS)
    look = browser.get(f"/tasks/{large_id}/edit")
    save = browser.act(f"/tasks/{large_id}/edit", {"payload": '{"n": 1}'})
    api = browser.ask("POST", f"/api/tasks/{large_id}/edit", json={"payload": {"n": 1}})
    for answer in (look, save, api):
        assert answer.status_code == 409
        assert "Its payload is too large to be edited." in answer.text
    assert one(engine, PAYLOADS) == before
