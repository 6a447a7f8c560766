"""A real Chromium on the dashboard of a real server, and what there is to be seen in it.

Tests that use it are skipped without a browser, loudly: apt-get install chromium.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import pytest
import uvicorn
from playwright.sync_api import Page, sync_playwright
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.routing import compile_path

from tasks_app import NewTask, Settings, create_group, create_schedule
from tests.clock import until
from tests.dashboard.browser import dashboard, one
from tests.dashboard.test_errors import fails
from tests.dashboard.test_operations import lives
from tests.dashboard.test_pages import audit, waiting_task
from tests.tiers import starts_processes

Test = TypeVar("Test", bound=Callable[..., None])
Filled = dict[str, Any]
CHROMIUM = os.environ.get("TASKS_APP_TEST_CHROMIUM") or shutil.which("chromium") or ""
MARKS = [
    pytest.mark.test_all,
    pytest.mark.timeout(120, method="thread"),
    pytest.mark.skipif(not CHROMIUM, reason="No Chromium was found. Run: apt-get install chromium"),
]
WIDE = {"width": 1440, "height": 900}
POSTED: dict[str, str] = {}
"""Which test clicks what is sent to a route."""


def posts(*routes: str) -> Callable[[Test], Test]:
    """Say to which routes the test's clicks send; its page makes sure that they do."""

    def declare(test: Test) -> Test:
        POSTED.update(dict.fromkeys(routes, test.__name__))
        test.routes = routes  # type: ignore[attr-defined]
        return test

    return declare


@pytest.fixture(scope="module")
@starts_processes
def chromium() -> Iterator[Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def address(engine: Engine, settings: Settings) -> Iterator[str]:
    """Of the dashboard on a real server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(dashboard(settings), lifespan="off", log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(lambda: server.started, 20)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def page(chromium: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A new window; whatever its console complains of fails the test."""
    context = chromium.new_context(base_url=address, viewport=WIDE)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    sent: list[str] = []
    page.on("request", lambda asked: sent.append(asked.url) if asked.method == "POST" else None)
    yield page
    context.close()
    assert said == []
    paths = [unquote(urlsplit(url).path) for url in sent]
    for route in getattr(request.function, "routes", ()):
        assert any(compile_path(route)[0].match(path) for path in paths), route


@pytest.fixture
def filled(engine: Engine) -> Filled:
    """Some of everything."""
    ids = [
        fails(engine, "shop.Declined", f"order {n} declined", name="pay", queue="money")
        for n in range(12)
    ]
    fails(engine, "KeyError", "'zip'", name="mail")
    later = waiting_task(engine, name="later", delay=3600, biz_key="order:1")
    lives(engine, "host/1", running=[{"id": later, "name": "later", "seconds": 2.0}])
    with Session(engine) as session, session.begin():
        group = create_group(session, [NewTask("a"), NewTask("b")])
        create_schedule(session, "nightly", "report", cron="30 2 * * *")
    query = "SELECT encode(fingerprint, 'hex') FROM task_error WHERE id = :id"
    cause = one(engine, query, id=ids[0])
    return {"ids": ids, "later": later, "group": group.id, "cause": cause}


def done(engine: Engine) -> list[tuple[str, str, list[int]]]:
    """What the audit has but the fixture's own."""
    return [line for line in audit(engine) if line[1]]
