"""The JSON API, and the connections that it reads with."""

from __future__ import annotations

import threading
import time
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import Engine

from tasks_app import Settings
from tasks_app.dashboard.app import ROUTES
from tasks_app.dashboard.reader import PageReader
from tests.clock import until
from tests.dashboard.browser import Browser, dashboard
from tests.dashboard.test_pages import failed_task, waiting_task

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
FEW = hypothesis.settings(
    max_examples=12,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_every_route_of_the_api_describes_itself(browser: Browser) -> None:
    described = browser.get("/api/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    for path, handler, method in ROUTES:
        if path.startswith("/api/"):
            operation = described["paths"][path.replace(":path}", "}")][method.lower()]
            assert operation["summary"], path
            assert handler.answers is not None, path


@pytest.mark.test_all
def test_answers_are_what_the_description_says(engine: Engine, settings: Settings) -> None:
    ids = [failed_task(engine, f"boom {number}") for number in range(3)]
    waiting_task(engine, payload={"order": 1}, biz_key="order:1")
    app = dashboard(settings, role=lambda _: "admin", who=lambda _: "eve")
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app)
    known = Browser(app)
    for operation in schema.get_all_operations():
        made = operation.ok()

        @FEW
        @hypothesis.given(case=made.as_strategy())
        def ask(case: Any) -> None:
            case.call_and_validate(checks=CHECKS)

        ask()
        if made.method == "get":  # and once where there is something to be shown
            path = made.path.replace("{task_id}", str(ids[0]))
            if "{" not in path:
                answer = known.get(path)
                assert answer.status_code == 200, path
                made.validate_response(answer)


DEEP = "[" * 100_000


def test_odd_requests_are_refused_in_a_sentence(browser: Browser) -> None:
    json = {"content-type": "application/json"}
    free = "/api/locks/free"
    for answer in (
        browser.get("/tasks?state=0"),
        browser.get("/api/tasks?state=x"),
        browser.get(f"/api/tasks?before={'9' * 5_000}"),
        browser.get(f"/tasks/{'9' * 5_000}"),
        browser.ask("POST", free, headers=json, content=DEEP),
        browser.ask("POST", free, headers=json, content='{"resource": "\\ud800"}'),
    ):
        assert answer.status_code == 400, answer.text
    odd = {**json, "origin": "http://["}
    assert browser.ask("POST", free, headers=odd, content="{}").status_code == 403
    assert browser.get("/", headers={"host": "["}).status_code == 403


def test_a_field_that_there_is_not_is_refused(browser: Browser) -> None:
    """A typing error would remove settings, or widen what a bulk means."""
    wrong = browser.ask("POST", "/api/queues/q/change", json={"max_attemps": 5})
    assert wrong.status_code == 400
    assert "There is no field max_attemps. It has: " in wrong.json()["title"]
    wrong = browser.ask("POST", "/api/bulks", json={"action": "hold", "name": "t", "bizkey": "k"})
    assert wrong.status_code == 400
    long = browser.ask("POST", "/api/queues/q/pause", json={"reason": "x" * 301})
    assert long.status_code == 400


@pytest.mark.test_all
def test_nobody_waits_for_what_is_a_little_old() -> None:
    reader, made, go = PageReader("postgresql+psycopg://nowhere"), [0], threading.Event()

    def make() -> int:
        made[0] += 1
        if made[0] > 1:
            go.wait(10)
        return made[0]

    assert reader.kept_or_stale("key", make, 1.0) == 1
    until(lambda: reader.kept_or_stale("key", make, 1.0) == 1 and made[0] == 2)
    assert reader.kept_or_stale("key", make, 1.0) == 1
    go.set()
    until(lambda: reader.kept_or_stale("key", make, 1.0) == 2)


def test_a_failure_behind_the_scenes_is_heard_of_by_the_next() -> None:
    reader, fails = PageReader("postgresql+psycopg://nowhere"), [False]

    def make() -> int:
        if fails[0]:
            raise LookupError("gone")
        return 1

    assert reader.kept_or_stale("key", make, 0.5) == 1
    fails[0] = True

    def heard() -> bool:
        try:
            reader.kept_or_stale("key", make, 0.5)
        except LookupError:
            return True
        return False

    until(heard)


def test_what_is_too_old_is_made_at_once() -> None:
    reader, made = PageReader("postgresql+psycopg://nowhere"), iter((1, 2))
    assert reader.kept_or_stale("key", lambda: next(made), 0.0) == 1
    assert reader.kept_or_stale("key", lambda: next(made), 0.0) == 2


@pytest.mark.test_all
def test_what_takes_long_is_kept_the_longer() -> None:
    reader, made = PageReader("postgresql+psycopg://nowhere"), iter((1, 2, 3))

    def slow() -> int:
        until(lambda: time.monotonic() > began + 0.02)
        return next(made)

    began = time.monotonic()
    assert reader.kept("key", slow, 0.0, 1_000) == 1
    assert reader.kept("key", slow, 0.0, 1_000) == 1
    assert reader.kept("key", slow, 0.0) == 2
