"""Metrics of the dashboard: for viewers, and for whoever has the password of the metrics."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tasks_app import Settings
from tasks_app.actions.action import Role
from tasks_app.monitor.metric_catalogue import CONTENT_TYPE
from tests.dashboard.browser import Browser, basic, dashboard
from tests.factory import pending_task

GIVEN = {
    "metrics_auth": "prom:m:p",
    "dashboard_auth": "bob:b,ann:a",
    "dashboard_roles": "bob:viewer",
}
STRANGER = "203.0.113.7"


def test_it_shows_what_the_command_shows(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        pending_task(connection, queue="mail")
    answer = browser.get("/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE
    assert answer.headers["cache-control"] == "no-store"
    assert '\ntasks_app_pending{queue="mail"} 1\n' in answer.text
    assert "\ntasks_app_up 1\n" in answer.text


@pytest.mark.parametrize(
    ("name", "password", "status"),
    [
        ("prom", "m:p", 200),
        ("prom", "m", 401),
        ("prom", "", 401),
        ("", "m:p", 401),
        ("bob", "b", 200),
        ("ann", "a", 403),
        ("bob", "m:p", 401),
    ],
)
def test_a_viewer_or_the_password_of_the_metrics(
    engine: Engine, settings: Settings, name: str, password: str, status: int
) -> None:
    app = dashboard(Settings(database_url=settings.database, **GIVEN))
    browser = Browser(app, client=STRANGER)
    assert browser.get("/metrics", headers=basic(name, password)).status_code == status


@pytest.mark.parametrize("path", ["/", "/tasks", "/api/overview"])
def test_that_password_opens_nothing_else(engine: Engine, settings: Settings, path: str) -> None:
    browser = Browser(dashboard(Settings(database_url=settings.database, **GIVEN)), client=STRANGER)
    assert browser.get(path, headers=basic("prom", "m:p")).status_code == 401


def test_without_such_a_password_nothing_is_one(engine: Engine, settings: Settings) -> None:
    browser = Browser(dashboard(settings), client=STRANGER)
    for headers in ({}, basic("", ""), {"authorization": "Bearer "}):
        assert browser.get("/metrics", headers=headers).status_code == 403


def test_with_roles_of_the_host_the_password_still_opens_it(
    engine: Engine, settings: Settings
) -> None:
    given = Settings(database_url=settings.database, metrics_auth="prom:m")
    browser = Browser(dashboard(given, role=lambda _: None), client=STRANGER)
    assert browser.get("/metrics").status_code == 403
    assert browser.get("/metrics", headers=basic("prom", "m")).status_code == 200
    viewer = Browser(dashboard(given, role=lambda _: Role.VIEWER.name), client=STRANGER)
    assert viewer.get("/metrics").status_code == 200


def test_probes_need_no_password_and_no_database() -> None:
    away = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    browser = Browser(dashboard(Settings(database_url=away, dashboard_auth="a:b")), client=STRANGER)
    answer = browser.get("/healthz")
    assert (answer.status_code, answer.text) == (200, "alive\n")
    assert browser.ask("POST", "/healthz").status_code == 405
