"""The adapter on a real Tornado server: streams, faults, who may come in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler, url

from tasks_app.dashboard.flower import Hosted

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


def test_who_is_not_known_is_sent_to_the_login() -> None:
    answer = asked(APP, lambda client: client.get("/pre/hello", headers={"who": "none"}))
    assert (answer.status_code, answer.headers["location"]) == (302, "/login")


def test_the_mount_itself_leads_to_its_first_page() -> None:
    answer = asked(APP, lambda client: client.get("/pre"))
    assert (answer.status_code, answer.headers["location"]) == (302, "/pre/")


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
