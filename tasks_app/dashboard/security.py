"""Who asks, what they may do, whether the request is their own, and the headers of each answer."""

from __future__ import annotations

import hmac
import inspect
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks_app.actions.action import Role
from tasks_app.domain.config.field_types import EVERYBODY, read_passwords, read_roles
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import is_local

Handler = Callable[..., Awaitable[Response]]
RoleOf = Callable[[Request], str | Awaitable[str | None] | None]
WhoOf = Callable[[Request], str | Awaitable[str]]
SAFE = frozenset({"GET", "HEAD"})
FORM, JSON = "application/x-www-form-urlencoded", "application/json"
API = "/api/"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks. Without a role they see nothing."""

    who: str
    role: Role | None
    ask: bool = False  # a name and a password would help
    why: str = ""


class HttpError(Exception):
    """The request is refused; its sender reads the message."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def requires(
    role: Role,
    *,
    answers: type | None = None,
    query: tuple[str, ...] = (),
    takes: type | None = None,
    scraped: bool = False,
) -> Callable[[Handler], Handler]:
    """Declare the least role of a route; ``scraped``: or the password of the metrics.

    The others describe the API: ``answers`` and ``takes`` are dataclasses.
    """

    def mark(handler: Handler) -> Handler:
        policy = {"role": role, "answers": answers, "query": query, "takes": takes}
        vars(handler).update(policy, scraped=scraped)
        return handler

    return mark


def guarded(
    handler: Handler, identify: Callable[[Request], Awaitable[Visitor]], state: Any
) -> Handler:
    """Return an endpoint that checks role and origin before it calls the handler."""
    role = getattr(handler, "role", None)
    if not isinstance(role, Role):
        raise TypeError(f"{handler.__name__} has no role. Put @requires(Role.…) above it.")

    async def endpoint(request: Request) -> Response:
        known = getattr(handler, "scraped", False) and metrics_visitor(request, state.settings)
        identity = known or await identify(request)
        if identity.ask:
            raise HttpError(401, identity.why)
        if identity.role is None or identity.role < role:
            why = identity.why or f"This needs the role {role.name.lower()}. Ask an admin for it."
            raise HttpError(403, why)
        if request.method not in SAFE and (why := await csrf_refusal(request)):
            raise HttpError(403, why)
        token = csrf_token(request)
        request.state.identity, request.state.token = identity, token
        response = await handler(request, state)
        if request.cookies.get(COOKIE) != token:
            set_cookie(request, response, COOKIE, token)
        return response

    return endpoint


async def identify(
    request: Request, settings: Settings, role: RoleOf | None, who: WhoOf | None
) -> Visitor:
    """Return who asks. With ``role`` the settings do not decide."""
    if role is not None:
        given = role(request)
        given = await given if inspect.isawaitable(given) else given
        name = who(request) if who else ""
        name = await name if inspect.isawaitable(name) else name
        return Visitor(name, None if given is None else Role[given.upper()])
    if settings.dashboard_auth is not None:
        return _by_password(request, settings)
    return local(request)


def metrics_visitor(request: Request, settings: Settings) -> Visitor | None:
    right = settings.metrics_auth.get_secret_value() if settings.metrics_auth else ""
    name, password = _credentials(request)
    given = f"{name or ''}:{password}"
    if not right or not hmac.compare_digest(given.encode(), right.encode()):
        return None
    return Visitor(name or "", Role.VIEWER)


def local(request: Request) -> Visitor:
    """Return an admin to this machine, and a visitor without a role to any other."""
    client = request.client.host if request.client else ""
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        host = ""
    if is_local(client) and is_local(host):
        return Visitor("local", Role.ADMIN)
    why = "Without a password it answers only this machine. Set TASKS_APP_DASHBOARD_AUTH."
    return Visitor("", None, why=why)


def _by_password(request: Request, settings: Settings) -> Visitor:
    users = settings.dashboard_auth.get_secret_value() if settings.dashboard_auth else ""
    given_name, given_password = _credentials(request)
    name = ""
    for known, right in read_passwords(users).items():  # all of them: the time tells nothing
        same = given_name is None or hmac.compare_digest(known.encode(), given_name.encode())
        if hmac.compare_digest(right.encode(), given_password.encode()) & same:
            name = known
    if not name:
        return Visitor("", None, ask=True, why="Give a name and a password.")
    return Visitor(name, role_of(name, settings))


def role_of(name: str, settings: Settings) -> Role | None:
    """Return the role of a user whose password was right; None: the settings give them none."""
    roles = read_roles(settings.dashboard_roles)
    role = roles.get(name, roles.get(EVERYBODY)) if roles else "admin"
    return None if role is None else Role[role.upper()]


def _credentials(request: Request) -> tuple[str | None, str]:
    """Return name and password; a bearer token is a password without a name."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return None, value.strip()
    try:
        text = b64decode(value, validate=True).decode() if kind.lower() == "basic" else ""
    except ValueError:
        text = ""
    name, _, password = text.partition(":")
    return name, password


def is_api(request: Request) -> bool:
    root = request.scope.get("root_path", "")
    return str(request.scope["path"]).removeprefix(root).startswith(API)


COOKIE, FIELD = "tasks_app_token", "token"
_LENGTH = 43  # of 32 random bytes


def csrf_token(request: Request) -> str:
    """Return the token of this browser, a new one if it has none."""
    given = request.cookies.get(COOKIE, "")
    return given if len(given) == _LENGTH else secrets.token_urlsafe(32)


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie for our pages alone, until the browser ends; empty: delete it."""
    response.set_cookie(
        name,
        value,
        max_age=None if value else 0,
        path=request.scope.get("root_path", "") or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


async def csrf_refusal(request: Request) -> str:
    """Return why the request may come from another site; empty: it does not."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if is_api(request):
        if _is_cross_site(request, default=False):
            return "A page of another site sent it. Such pages may not use the API."
        return "" if kind == JSON else f"The API takes {JSON}. Send this content type."
    if _is_cross_site(request, default=True):
        return "It comes from another site. Open the page here and try again."
    if kind != FORM:
        return "It is not a form of the dashboard. Open the page here and try again."
    form = await request.form()
    given, kept = str(form.get(FIELD, "")), request.cookies.get(COOKIE, "")
    if len(kept) != _LENGTH or not hmac.compare_digest(given.encode(), kept.encode()):
        return "Its token does not belong to this browser. Reload the page and try again."
    return ""


def _is_cross_site(request: Request, *, default: bool) -> bool:
    """Return ``default`` if the headers of a browser are missing."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site:
        return site != "same-origin"
    if not origin:
        return default
    try:
        return urlsplit(origin).netloc != request.headers.get("host")
    except ValueError:
        return True


MOST_BYTES = 1_000_000
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)
# An application around ours leaves its routes in the scope.
OUTER = ("router", "app", "endpoint", "path_params", "route", "app_root_path")


class TooLargeError(Exception):
    """A body has more than MOST_BYTES."""


class RequestEnvelope:
    """Limits bodies and adds headers, under any mount."""

    def __init__(self, app: ASGIApp, close: Callable[[], None]) -> None:
        self._app = app
        self.close = close
        """Gives the connections back; a process that ends need not call it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MOST_BYTES:
                raise TooLargeError
            return message

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                more = [pair for pair in _HEADERS if pair[0] not in names]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        inner = {name: value for name, value in scope.items() if name not in OUTER}
        await self._app(inner, bounded, with_headers)
