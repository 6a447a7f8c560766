"""An ASGI application behind a Tornado handler.

Tornado's own check of cookies is off: the application checks each request that changes something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler

Extra = Callable[[RequestHandler, Any], dict[str, Any]]
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_log = logging.getLogger("tasks_app.dashboard")


class Hosted(RequestHandler):
    """Serves ``app`` under ``mount``, to users that the host's ``get_current_user`` lets in.

    Mix it in before the host's handler. ``extra(handler, user)`` goes into the scope.
    """

    SUPPORTED_METHODS = _METHODS

    def initialize(self, app: ASGIApp, mount: str, extra: Extra) -> None:
        self._app, self._mount, self._extra = app, mount, extra
        self._gone = asyncio.Event()
        self._answered = False

    def set_default_headers(self) -> None:
        """Leave them to the application."""

    def check_xsrf_cookie(self) -> None:
        """Leave it to the application, which also asks when nobody needs a password."""

    def compute_etag(self) -> None:
        """Leave it to the application; or Tornado would hold back what is streamed."""

    def on_connection_close(self) -> None:
        self._gone.set()

    async def _serve(self) -> None:
        user = self.current_user
        if not user:
            self.redirect(self.get_login_url())
        elif self.request.path == self._mount:
            self.redirect(f"{self._mount}/")
        else:
            await self._run(user)

    get = head = post = put = patch = delete = options = _serve

    async def _run(self, user: Any) -> None:
        request, body = self.request, [self.request.body]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.protocol,
            "path": request.path,
            "raw_path": request.path.encode(),
            "root_path": self._mount,
            "query_string": (request.query or "").encode(),
            "headers": [
                (name.lower().encode("latin-1"), value.encode("latin-1"))
                for name, value in request.headers.get_all()
            ],
            "client": (request.remote_ip, 0),
            "server": (request.host_name, None),
            "state": {},
            **self._extra(self, user),
        }

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        try:
            await self._app(scope, receive, self._send)
        except Exception:
            # Starlette raises again after it has answered; Tornado would answer with a traceback.
            if not self._gone.is_set():
                _log.exception("%s %s", request.method, request.path)
            if not self._answered:
                self.set_status(500)
        if not self._finished and not self._gone.is_set():
            await self.finish()

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._answered = True
            for name in ("Content-Type", "Server"):  # Tornado's own
                self.clear_header(name)
            self.set_status(message["status"])
            for name, value in message["headers"]:
                self.add_header(name.decode("latin-1"), value.decode("latin-1"))
            return
        self.write(message.get("body", b""))
        if message.get("more_body"):
            try:
                await self.flush()
            except StreamClosedError:
                self._gone.set()
                raise OSError("the browser has gone") from None
