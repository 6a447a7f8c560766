"""How the dashboard is served: alone, mounted, and in Flower by a real Tornado server."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler, url

from tasks_app import Settings
from tasks_app.dashboard.flower import Hosted
from tasks_app.dashboard.html import STATIC
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
    said = (STATIC / "VENDORED.md").read_text()
    assert sha256((STATIC / "htmx.min.js").read_bytes()).hexdigest() in said


Asking = Callable[[httpx.AsyncClient], Any]


class Host(RequestHandler):
    def get_current_user(self) -> Any:
        return {"none": None}.get(self.request.headers.get("who", ""), "ann")

    def get_login_url(self) -> str:
        return "/login"


class Page(Hosted, Host):
    pass


def asked(app: Any, ask: Asking) -> Any:
    """What ``ask`` returns of the application, which is served under ``/pre``."""

    async def run() -> Any:
        listener, port = bind_unused_port()
        kept = {"app": app, "mount": "/pre", "extra": lambda _, user: {"user": user}}
        server = HTTPServer(Application([url("/pre(?:/.*)?", Page, kept)], xsrf_cookies=True))
        server.add_sockets([listener])
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                return await ask(client)
        finally:
            server.stop()

    return asyncio.run(run())


async def hello(request: Request) -> Response:
    body = await request.body()
    said = f"{request.scope['user']} {request.url.path} {request.url.query} {body.decode()}"
    answer = PlainTextResponse(said, 201, headers={"etag": '"x"'})
    answer.set_cookie("a", "1")
    answer.set_cookie("b", "2")
    return answer


async def broken(request: Request) -> Response:
    raise ZeroDivisionError("secret of the traceback")


APP = Starlette(routes=[Route("/hello", hello, methods=["GET", "POST"]), Route("/broken", broken)])


def test_a_request_and_its_answer_arrive_whole() -> None:
    answer = asked(APP, lambda client: client.post("/pre/hello?q=ä", content="body"))
    assert (answer.status_code, answer.headers["etag"]) == (201, '"x"')
    assert answer.text == "ann /pre/hello q=%C3%A4 body"
    assert len(answer.headers.get_list("set-cookie")) == 2
    assert answer.headers.get_list("content-type") == ["text/plain; charset=utf-8"]


@pytest.mark.parametrize(
    ("path", "who", "leads_to"),
    [("/pre/hello", "none", "/login"), ("/pre", "ann", "/pre/")],
    ids=["who is not known to the login", "the mount itself to its first page"],
)
def test_it_leads(path: str, who: str, leads_to: str) -> None:
    answer = asked(APP, lambda client: client.get(path, headers={"who": who}))
    assert (answer.status_code, answer.headers["location"]) == (302, leads_to)


def test_a_fault_is_answered_by_the_application(caplog: pytest.LogCaptureFixture) -> None:
    answer = asked(APP, lambda client: client.get("/pre/broken"))
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert "secret of the traceback" in caplog.text


def test_a_stream_arrives_piece_by_piece_and_ends_when_the_browser_goes() -> None:
    ended, more = asyncio.Event(), asyncio.Event()

    async def pieces() -> Any:
        yield "first\n"
        await more.wait()
        while True:
            yield "x" * 100_000

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await StreamingResponse(pieces())(scope, receive, send)
        finally:
            ended.set()

    async def ask(client: httpx.AsyncClient) -> str:
        async with client.stream("GET", "/pre/endless") as answer:
            first = await anext(answer.aiter_text())
        more.set()
        await asyncio.wait_for(ended.wait(), 20)
        return first

    assert asked(app, ask) == "first\n"
