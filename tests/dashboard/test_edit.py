"""Another payload for one task: looked at, checked by the handler, saved, requeued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine

from tasks_app import Settings, TaskContext, handler
from tasks_app.dashboard.routes.actions import unmasked
from tasks_app.dashboard.security import HttpError
from tasks_app.domain.config.setting_sources import masked
from tasks_app.runtime.handlers.registry import HANDLERS
from tests.dashboard.browser import Browser, browser_of, is_one_sentence, one
from tests.dashboard.test_pages import audit, failed_task, waiting_task


class Order(BaseModel):
    order: int
    api_token: str = ""


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    @handler("edit.me")
    def edit_me(ctx: TaskContext, payload: Order) -> None: ...

    yield
    del HANDLERS.specs["edit.me"]


def payload_of(engine: Engine, task_id: int) -> Any:
    return one(engine, "SELECT payload FROM task_all WHERE id = :id", id=task_id)


def failed(engine: Engine, payload: dict[str, Any]) -> int:
    task_id = waiting_task(engine, name="edit.me", payload=payload)
    return failed_task(engine, task_id=task_id, name="edit.me")


def test_the_difference_is_shown_and_nothing_is_changed(engine: Engine, browser: Browser) -> None:
    task_id = failed(engine, {"order": 1, "api_token": "tok_secret"})
    page = browser.get(f"/tasks/{task_id}/edit").text
    assert "tok_secret" not in page
    given = '{"order": 2, "api_token": "***"}'
    page = browser.act(f"/tasks/{task_id}/edit", {"payload": given, "look": "true"}).text
    assert "-  &#34;order&#34;: 1," in page
    assert "+  &#34;order&#34;: 2," in page
    assert "tok_secret" not in page
    assert "Save and requeue" in page
    assert payload_of(engine, task_id) == {"order": 1, "api_token": "tok_secret"}


def test_a_masked_value_keeps_what_is_stored(engine: Engine, browser: Browser) -> None:
    task_id = failed(engine, {"order": 1, "api_token": "tok_secret"})
    given = {"payload": '{"order": 2, "api_token": "***"}', "requeue": "true"}
    browser.act(f"/tasks/{task_id}/edit", given)
    assert payload_of(engine, task_id) == {"order": 2, "api_token": "tok_secret"}
    assert browser.get(f"/api/tasks/{task_id}").json()["task"]["state"] == "PENDING"
    told = [(action, who) for action, who, _ in audit(engine)]
    assert told == [(action, "local (dashboard)") for action in ("edit", "requeue")]


def test_so_does_a_masked_path(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_MASKED_PATHS", "edit.*:order")
    task_id = failed(engine, {"order": 4711471147, "api_token": "a"})
    assert "4711471147" not in browser.get(f"/tasks/{task_id}/edit").text
    given = '{"order": "***", "api_token": "b"}'
    browser.act(f"/tasks/{task_id}/edit", {"payload": given})
    assert payload_of(engine, task_id) == {"order": 4711471147, "api_token": "b"}


def test_the_handlers_model_refuses(engine: Engine, browser: Browser) -> None:
    task_id = failed(engine, {"order": 1})
    for look in ("true", "false"):
        given = {"payload": '{"order": "many"}', "look": look}
        answer = browser.act(f"/tasks/{task_id}/edit", given)
        assert answer.status_code == 409
        _, _, wrong = answer.text.partition('<section class="said bad"')
        sentence = wrong.partition("</section>")[0]
        assert "order" in sentence
        assert "many" not in sentence, "no value of a payload in an error"
    assert payload_of(engine, task_id) == {"order": 1}


def test_what_is_wrong_is_shown_again_to_be_corrected(engine: Engine, browser: Browser) -> None:
    task_id = failed(engine, {"order": 1})
    answer = browser.act(f"/tasks/{task_id}/edit", {"payload": '{"order": <2', "look": "true"})
    assert answer.status_code == 400
    assert "The payload is not JSON" in answer.text
    assert "{&#34;order&#34;: &lt;2</textarea>" in answer.text


def test_what_no_handler_knows_is_not_changed(engine: Engine, browser: Browser) -> None:
    task_id = failed_task(engine, name="nobody.knows")
    answer = browser.act(f"/tasks/{task_id}/edit", {"payload": "{}"})
    assert answer.status_code == 409
    assert "TASKS_APP_IMPORTS" in answer.text


@pytest.mark.parametrize("given", ["", "{", "[]", "1", '{"order": "a***"}'])
def test_wrong_input_is_one_sentence(engine: Engine, browser: Browser, given: str) -> None:
    task_id = failed(engine, {"order": 1})
    is_one_sentence(browser.act(f"/tasks/{task_id}/edit", {"payload": given}))


def test_only_admins_edit(engine: Engine, settings: Settings) -> None:
    operator = browser_of(settings, "operator")
    task_id = failed(engine, {"order": 1})
    assert operator.get(f"/tasks/{task_id}/edit").status_code == 403
    assert operator.act(f"/tasks/{task_id}/edit", {"payload": "{}"}).status_code == 403
    assert "/edit" not in operator.get(f"/tasks/{task_id}").text


def test_masks_are_undone_only_where_they_were_made() -> None:
    stored = {"a": [{"password": "x"}, 1], "url": "redis://u:pw@h/0", "n": None}
    shown = {"a": [{"password": "***"}, 2], "url": "redis://u:***@h/0", "n": None}
    assert unmasked(shown, stored, masked(stored)) == {**stored, "a": [{"password": "x"}, 2]}
    for wrong in ({"b": "***"}, {"a": [{"password": "***"}]}, {"url": "redis://other:***@h/0"}):
        with pytest.raises(HttpError):
            unmasked(wrong, stored, masked(stored))
