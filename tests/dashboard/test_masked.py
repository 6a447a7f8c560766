"""What a masked path holds is on no page and in no answer of the API, whoever asks."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tasks_app import create_schedule, create_task
from tests.dashboard.browser import Browser

PAYLOAD = {"order": 1, "card": {"number": "canary-4711"}}


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
