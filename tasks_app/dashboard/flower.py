"""Flower with the dashboard as one of its tabs: an ASGI application behind a Tornado handler."""

from __future__ import annotations

import asyncio
import atexit
import logging
import signal
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from celery import Celery
from flower import command
from flower.app import Flower
from flower.urls import settings as flower_settings
from flower.views import BaseHandler
from starlette.requests import Request
from starlette.types import ASGIApp, Message
from tornado.iostream import StreamClosedError
from tornado.options import options
from tornado.template import DictLoader
from tornado.web import RequestHandler, url

from tasks_app.actions.action import Role
from tasks_app.dashboard.app import dashboard_app
from tasks_app.dashboard.security import RequestEnvelope, local, role_of
from tasks_app.domain.config.settings import Settings

AT = "/dashboard"
USER, READ_ONLY, FLOWER = "tasks_app.user", "tasks_app.read_only", "tasks_app.flower"
Extra = Callable[[RequestHandler, Any], dict[str, Any]]
_log = logging.getLogger("tasks_app.dashboard")


def serve(context: click.Context, settings: Settings, arguments: Sequence[str]) -> None:
    """Serve until a signal, with the options of Flower."""
    command.warn_about_celery_args_used_in_flower_command(context, arguments)
    command.apply_env_options()
    command.apply_options(sys.argv[0], arguments)
    command.extract_settings()
    command.setup_logging()
    flower = PoolFlower(settings, context.obj.app)
    atexit.register(flower.dashboard.close)
    atexit.register(flower.stop)
    signal.signal(signal.SIGTERM, command.sigterm_handler)
    port = flower.start_http_server()
    if not context.obj.quiet:
        command.print_banner(context.obj.app, "ssl_options" in flower_settings, port)
        scheme = "https" if flower.ssl_options else "http"
        host = options.address or "localhost"
        click.echo(f"Dashboard: {scheme}://{host}:{port}{flower.mount}/")
    with suppress(KeyboardInterrupt, SystemExit):
        flower.start()


class Hosted(RequestHandler):
    """Serves ``app`` under ``mount`` to users that the host's ``get_current_user`` accepts.

    Mix it in before the host's handler. ``extra(handler, user)`` goes into the scope.
    """

    SUPPORTED_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

    def initialize(self, app: ASGIApp, mount: str, extra: Extra) -> None:
        self._app, self._mount, self._extra = app, mount, extra
        self._gone = asyncio.Event()
        self._answered = False

    def set_default_headers(self) -> None:
        """Leave it to the application: for an ETag Tornado would hold back streams."""

    check_xsrf_cookie = compute_etag = set_default_headers

    def on_connection_close(self) -> None:
        self._gone.set()

    async def _serve(self) -> None:
        user = self.current_user
        if not user:
            self.redirect(self.get_login_url())
        elif self.request.path == self._mount:
            self.redirect(f"{self._mount}/")
        else:
            await self._call_app(user)

    get = head = post = put = patch = delete = options = _serve

    async def _call_app(self, user: Any) -> None:
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
            # Starlette raises again after its answer; Tornado would answer with a traceback.
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


class PoolHandler(Hosted, BaseHandler):  # type: ignore[misc]  # Flower has no types
    """The dashboard for users of Flower."""


class PoolFlower(Flower):  # type: ignore[misc]
    """Flower with one more tab, and links between both pages of a task."""

    def __init__(self, settings: Settings, capp: Celery) -> None:
        prefix = f"/{options.url_prefix.strip('/')}" if options.url_prefix else ""
        self.mount = mount = prefix + AT
        given = {**flower_settings, "template_loader": DictLoader(templates(mount))}
        super().__init__(capp=capp, options=options, **given)
        self.dashboard = pool_dashboard(settings)

        def extra(handler: Any, user: Any) -> dict[str, Any]:
            return {USER: _name(handler, user), READ_ONLY: options.read_only, FLOWER: prefix}

        kept = {"app": self.dashboard, "mount": mount, "extra": extra}
        self.add_handlers(r".*", [url(rf"{mount}(?:/.*)?", PoolHandler, kept)])


def pool_dashboard(settings: Settings) -> RequestEnvelope:
    """Return the dashboard with Flower's users and the roles of the settings."""

    def role(request: Request) -> str | None:
        name = request.scope[USER]
        found = local(request).role if name is None else role_of(name, settings)
        if found and request.scope[READ_ONLY]:
            found = Role.VIEWER
        return None if found is None else found.name

    return dashboard_app(settings, role=role, who=lambda request: request.scope[USER] or "local")


def templates(mount: str) -> dict[str, str]:
    """Return Flower's templates by name, with our tab and our link."""
    folder = Path(flower_settings["template_path"])
    found = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.html")
    }
    tab = f'<li class="nav-item"><a class="nav-link" href="{mount}/">Dashboard</a></li>'
    link = (
        '{% if task.uuid.isdigit() %}<a class="btn btn-secondary" '
        f'href="{mount}/tasks/{{{{ task.uuid }}}}">In the dashboard</a>{{% end %}}'
    )
    found["navbar.html"] = found["navbar.html"].replace("</ul>", f"{tab}</ul>", 1)
    actions = '<div class="detail-actions">'
    found["task.html"] = found["task.html"].replace(actions, actions + link, 1)
    return found


def _name(handler: Any, user: Any) -> str | None:
    """Return the user's name; None: Flower has no passwords."""
    if isinstance(user, str):
        return user
    if not options.basic_auth:
        return None
    credentials = b64decode(handler.request.headers["Authorization"].split()[1]).decode()
    return credentials.partition(":")[0]
