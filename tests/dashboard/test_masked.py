"""What a masked path holds is on no page and in no answer of the API, whoever asks."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from tasks_app import NewTask, create_group, create_schedule, create_task
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tests.dashboard.browser import Browser
from tests.factory import claimed_task, ending

PAYLOAD = {"order": 1, "card": {"number": "canary-4711"}}
QUOTES = Cause("ValueError", "canary-4711 is refused")


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_MASKED_PATHS", "card.number,order")


def test_pages_and_the_api_hide_it(browser: Browser, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = create_task(connection, "t", PAYLOAD)
        create_schedule(connection, "s", "t", PAYLOAD, every="1h")
    for path in (f"/tasks/{task_id}", f"/api/tasks/{task_id}", "/schedules/s", "/api/schedules/s"):
        page = browser.get(path)
        assert page.status_code == 200
        assert "canary" not in page.text
        assert "***" in page.text


@pytest.mark.test_all
def test_texts_that_were_stored_before_the_rule_are_hidden_too(
    browser: Browser, engine: Engine
) -> None:
    with engine.begin() as connection:
        group = create_group(connection, [NewTask("t", PAYLOAD)])
        failed = claimed_task(connection, group.task_ids[0])
        settle_one(connection, ending(failed, Event.FAIL, cause=QUOTES))
        retried = claimed_task(connection, payload=PAYLOAD)
        settle_one(connection, ending(retried, Event.RETRY, cause=QUOTES))
        query = text("SELECT encode(fingerprint, 'hex') FROM task_error")
        cause = connection.execute(query).scalar_one()
        create_task(connection, "other", biz_key=cause)

    shown = {
        *(
            "/tasks",
            "/api/tasks",
            "/tasks/export.csv",
            "/tasks/export.jsonl",
            "/errors",
            "/api/errors",
            f"/errors/{cause}",
        ),
        *(f"/api/errors/{cause}", "/", "/api/overview", f"/find?q={cause}"),
        *(f"/groups/{group.id}", f"/api/groups/{group.id}"),
        *(f"{at}/tasks/{each.fence.task_id}" for at in ("", "/api") for each in (failed, retried)),
    }
    for path in sorted(shown):
        page = browser.get(path)
        assert page.status_code == 200, path
        assert "canary" not in page.text, path
        assert "*** is refused" in page.text, path
