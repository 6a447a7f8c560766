"""How the dashboard is served: alone and mounted."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.routing import Mount

from tasks_app import Settings
from tasks_app.dashboard.server import check_address
from tasks_app.domain.errors import ConfigurationError
from tests.dashboard.browser import Browser, dashboard
from tests.dashboard.test_pages import audit, failed_task

URL = "postgresql+psycopg://u@h/n"


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.1", "shop.example"])
def test_others_need_a_password(host: str) -> None:
    with pytest.raises(ConfigurationError, match="no password"):
        check_address(Settings(database_url=URL), host)
    check_address(Settings(database_url=URL, dashboard_auth="bob:secret"), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    check_address(Settings(database_url=URL), host)


@pytest.mark.parametrize("wrong", ["bob", "bob:", ":secret", "bob:x,ann"])
def test_a_password_without_its_name_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="name:password"):
        Settings(database_url=URL, dashboard_auth=wrong)


@pytest.mark.parametrize("wrong", ["bob", "bob:root", ":admin"])
def test_roles_are_checked(wrong: str) -> None:
    with pytest.raises(ValueError, match="viewer, operator and admin"):
        Settings(database_url=URL, dashboard_roles=wrong)


@pytest.mark.test_all
def test_producers_and_workers_import_none_of_it() -> None:
    code = (
        "import sys, tasks_app, tasks_app.celery, tasks_app.runtime.worker.standalone;"
        "print([m for m in ('starlette', 'jinja2', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def in_starlette(settings: Settings) -> Starlette:
    inner = dashboard(settings, role=lambda _: "operator", who=lambda _: "ann")
    return Starlette(routes=[Mount("/ops/pool", inner)])


def in_fastapi(settings: Settings) -> object:
    fastapi = pytest.importorskip("fastapi")
    app = fastapi.FastAPI()

    async def role(request: object) -> str:
        return "operator"

    app.mount("/ops/pool", dashboard(settings, role=role, who=lambda _: "ann"))
    return app


@pytest.mark.parametrize("host", [in_starlette, in_fastapi])
def test_links_and_actions_keep_the_prefix(engine: Engine, settings: Settings, host) -> None:
    task_id = failed_task(engine)
    browser = Browser(host(settings), client="203.0.113.7", base="http://shop.example")
    for path in ("/ops/pool/", "/ops/pool/tasks", f"/ops/pool/tasks/{task_id}"):
        answer = browser.get(path)
        assert answer.status_code == 200
        links = re.findall(r'(?:href|src|action|hx-get)="(/[^"]*)"', answer.text)
        assert links
        assert all(link.startswith("/ops/pool/") for link in links), links
        assert browser.get(links[0]).status_code == 200
    answer = browser.act(f"/ops/pool/tasks/{task_id}/requeue", root="/ops/pool")
    assert answer.headers["location"] == f"/ops/pool/tasks/{task_id}"
    assert audit(engine) == [("requeue", "ann (dashboard)", [task_id])]


def test_the_files_of_others_are_those_that_were_looked_at() -> None:
    from hashlib import sha256

    from tasks_app.dashboard.html import STATIC

    said = (STATIC / "VENDORED.md").read_text()
    assert sha256((STATIC / "htmx.min.js").read_bytes()).hexdigest() in said
