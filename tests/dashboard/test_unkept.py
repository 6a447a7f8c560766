"""Pages tell of successes that left no row where they would show them."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.dashboard.browser import Browser
from tests.pool.test_statistics import left_no_row


@pytest.fixture(autouse=True)
def some(engine: Engine) -> None:
    with engine.begin() as connection:
        left_no_row(connection, 1_200)


def test_pages_tell(browser: Browser) -> None:
    for page in ("/tasks", "/tasks?state=SUCCEEDED", "/queues/q", "/tasks/7", "/find?q=7"):
        assert "1,200 tasks of" in browser.get(page).text, page
    assert browser.get("/api/tasks").json()["unkept"]["number"] == 1_200
    assert browser.get("/api/tasks?state=FAILED").json()["unkept"] is None
