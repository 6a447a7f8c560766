"""The dashboard over the shared database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tasks_app import Settings
from tests.dashboard.browser import OPEN, Browser, dashboard


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture
def settings(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("AUTH", "ROLES"):
        monkeypatch.delenv(f"TASKS_APP_DASHBOARD_{name}", raising=False)
    return Settings(database_url=database_url)


@pytest.fixture
def browser(engine: Engine, settings: Settings) -> Browser:
    """An admin's, on this machine."""
    return Browser(dashboard(settings))
