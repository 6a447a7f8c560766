"""A browser's side of the dashboard: cookies, headers, tokens; the application runs in-process."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from http.cookies import SimpleCookie
from typing import Any

import httpx
from sqlalchemy import Engine, text

from tasks_app import Settings
from tasks_app.dashboard.app import dashboard_app
from tasks_app.dashboard.security import RequestEnvelope

HOST = "http://localhost"
SAME = {"sec-fetch-site": "same-origin"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
LOOP = asyncio.Runner()
"""One for all requests: a new one would start new threads for each."""
OPEN: list[RequestEnvelope] = []
"""Closed after each test."""


def dashboard(*args: Any, **options: Any) -> RequestEnvelope:
    OPEN.append(dashboard_app(*args, **options))
    return OPEN[-1]


class Browser:
    """Asks an ASGI application, one request at a time."""

    def __init__(self, app: Any, *, client: str = "127.0.0.1", base: str = HOST) -> None:
        self._app, self._client, self._base = app, (client, 1), base
        self.cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return LOOP.run(self._ask(method, path, **more))

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def act(self, path: str, data: dict[str, Any] | None = None, **more: Any) -> httpx.Response:
        """Post the form of a page as a browser does, token and all."""
        auth = {k: v for k, v in more.get("headers", {}).items() if k == "authorization"}
        self.get(f"{more.pop('root', '')}/tasks", headers=auth)
        headers = {**SAME, **more.pop("headers", {})}
        form = {**(data or {}), "token": self.token}
        return self.ask("POST", path, headers=headers, data=form, **more)

    @property
    def token(self) -> str:
        return self.cookies.get("tasks_app_token", "")

    async def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, client=self._client, raise_app_exceptions=False)
        sent = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {**({"cookie": sent} if sent else {}), **more.pop("headers", {})}
        async with httpx.AsyncClient(transport=transport, base_url=self._base) as client:
            answer = await client.request(method, path, headers=headers, **more)
        for line in answer.headers.get_list("set-cookie"):
            for name, cookie in SimpleCookie(line).items():
                self.cookies[name] = cookie.value
                if cookie["max-age"] == "0":
                    del self.cookies[name]
        return answer


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def browser_of(settings: Settings, role: str, who: str = "bob") -> Browser:
    return Browser(dashboard(settings, role=lambda _: role, who=lambda _: who))


def shows(page: str, *texts: str) -> None:
    assert [each for each in texts if each not in page] == []


def is_inert(page: str, path: str = "") -> None:
    """Neither text of users nor the page itself brings code or style that runs in it."""
    found = ("<script>", "<img", "style=", "<style", "onclick")
    assert [each for each in found if each in page] == [], path


def is_one_sentence(answer: httpx.Response, status: int = 400) -> None:
    assert answer.status_code == status
    assert "Traceback" not in answer.text


def one(engine: Engine, query: str, **values: Any) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(query), values).scalar_one_or_none()


def write(engine: Engine, statement: str, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement), values)
