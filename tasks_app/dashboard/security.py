"""Who asks, what they may do, whether the request is their own, and the headers of each answer."""

from __future__ import annotations

import hmac
import inspect
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks_app.actions.action import Role
from tasks_app.domain.config.field_types import EVERYBODY, read_passwords, read_roles
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import is_local

__all__ = [
    "Role",
    "Visitor",
]


Handler = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks. Without a role they see nothing."""

    who: str
    role: Role | None
    ask: bool = False  # A name and a password would help
    why: str = ""


Identify = Callable[[Request], Awaitable[Visitor]]


class HttpError(Exception):
    """The request is not carried out; the message is for who sent it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Declared(Protocol):
    role: Role
    answers: type | None
    query: tuple[str, ...]
    takes: type | None
    scraped: bool


def requires(
    role: Role,
    *,
    answers: type | None = None,
    query: tuple[str, ...] = (),
    takes: type | None = None,
    scraped: bool = False,
) -> Callable[[Handler], Handler]:
    """Say the least role that a route asks for; ``scraped``: or the password of the metrics.

    The rest describes the API: the dataclass that it answers with, the parameters of its query,
    and the dataclass of its body.
    """

    def mark(handler: Handler) -> Handler:
        handler.role, handler.answers = role, answers  # type: ignore[attr-defined]
        handler.query, handler.takes = query, takes  # type: ignore[attr-defined]
        handler.scraped = scraped  # type: ignore[attr-defined]
        return handler

    return mark


def guarded(handler: Handler, identify: Identify, desk: Any) -> Handler:
    """Return an endpoint that asks first.

    Raises:
        TypeError: the handler does not say who may use it.
    """
    role = getattr(handler, "role", None)
    if not isinstance(role, Role):
        raise TypeError(f"{handler.__name__} has no role. Put @requires(Role.…) above it.")

    scraped = getattr(handler, "scraped", False)

    async def endpoint(request: Request) -> Response:
        known = scraper(request, desk.settings) if scraped else None
        identity = known or await identify(request)
        if identity.ask:
            raise HttpError(401, identity.why)
        if identity.role is None or identity.role < role:
            why = identity.why or f"This needs the role {role.name.lower()}. Ask an admin for it."
            raise HttpError(403, why)
        if request.method not in SAFE and (why := await refusal(request)):
            raise HttpError(403, why)
        request.state.identity, request.state.token = identity, token_of(request)
        response = await handler(request, desk)
        remember(request, response, request.state.token)
        return response

    endpoint.role = role  # type: ignore[attr-defined]
    return endpoint


RoleOf = Callable[[Request], str | Awaitable[str | None] | None]
WhoOf = Callable[[Request], str | Awaitable[str]]


async def identify(
    request: Request, settings: Settings, role: RoleOf | None, who: WhoOf | None
) -> Visitor:
    """Return who asks. With ``role`` the settings have no say."""
    if role is not None:
        said = role(request)
        said = await said if inspect.isawaitable(said) else said
        name = "" if who is None else who(request)
        name = await name if inspect.isawaitable(name) else name
        return Visitor(name, None if said is None else Role[said.upper()])
    if settings.dashboard_auth is not None:
        return _by_password(request, settings)
    return local(request)


def scraper(request: Request, settings: Settings) -> Visitor | None:
    """Return the viewer that Prometheus is, if it gives the password of the metrics."""
    right = settings.metrics_auth.get_secret_value() if settings.metrics_auth else ""
    name, password = _credentials(request.headers.get("authorization", ""))
    given = f"{name or ''}:{password}"
    if not right or not hmac.compare_digest(given.encode(), right.encode()):
        return None
    return Visitor(name or "", Role.VIEWER)


def local(request: Request) -> Visitor:
    """Return the admin that everybody on this machine is where there are no passwords."""
    client = request.client.host if request.client else ""
    try:
        asked = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        asked = ""
    if is_local(client) and is_local(asked):
        return Visitor("local", Role.ADMIN)
    why = "Without a password it answers this machine only. Set TASKS_APP_DASHBOARD_AUTH."
    return Visitor("", None, why=why)


def _by_password(request: Request, settings: Settings) -> Visitor:
    given = settings.dashboard_auth.get_secret_value() if settings.dashboard_auth else ""
    asked, password = _credentials(request.headers.get("authorization", ""))
    name = ""
    for known, right in read_passwords(given).items():  # all of them: the time tells nothing
        same = asked is None or hmac.compare_digest(known.encode(), asked.encode())
        if hmac.compare_digest(right.encode(), password.encode()) & same:
            name = known
    if not name:
        return Visitor("", None, ask=True, why="A name and a password are needed.")
    return Visitor(name, role_of(name, settings))


def role_of(name: str, settings: Settings) -> Role | None:
    """Return the role of one whose password was right; None: none was given to them."""
    roles = read_roles(settings.dashboard_roles)
    role = roles.get(name, roles.get(EVERYBODY)) if roles else "admin"
    return None if role is None else Role[role.upper()]


def _credentials(header: str) -> tuple[str | None, str]:
    kind, _, value = header.partition(" ")
    if kind.lower() == "bearer":
        return None, value.strip()
    try:
        text = b64decode(value, validate=True).decode() if kind.lower() == "basic" else ""
    except ValueError:
        text = ""
    name, _, password = text.partition(":")
    return name, password


COOKIE, FIELD = "tasks_app_token", "token"
SAFE = frozenset({"GET", "HEAD"})
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
_LENGTH = 43
API = "/api/"


def is_api(request: Request) -> bool:
    root = request.scope.get("root_path", "")
    return str(request.scope["path"]).removeprefix(root).startswith(API)


def token_of(request: Request) -> str:
    """Return the token of this browser, a new one if it has none."""
    given = request.cookies.get(COOKIE, "")
    return given if len(given) == _LENGTH else secrets.token_urlsafe(32)


def remember(request: Request, response: Response, token: str) -> None:
    if request.cookies.get(COOKIE) != token:
        set_cookie(request, response, COOKIE, token)


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


async def refusal(request: Request) -> str:
    """Return why the request must not be carried out; empty: it may."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if is_api(request):
        if _elsewhere(request, unsaid=False):
            return "It comes from another site's page, which may not use the API."
        return "" if kind == JSON else f"The API takes {JSON}. Send this content type."
    if _elsewhere(request, unsaid=True):
        return "It comes from another site. Open the page here and try again."
    if kind != FORM:
        return "It is not a form of the dashboard. Open the page here and try again."
    form = await request.form()
    given, kept = str(form.get(FIELD, "")), request.cookies.get(COOKIE, "")
    if len(kept) != _LENGTH or not hmac.compare_digest(given.encode(), kept.encode()):
        return "Its token is not the one of this browser. Reload the page and try again."
    return ""


def _elsewhere(request: Request, *, unsaid: bool) -> bool:
    """Whether another site's page sent it; ``unsaid``: what if no browser says so."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site:
        return site != "same-origin"
    if not origin:
        return unsaid
    try:
        return urlsplit(origin).netloc != request.headers.get("host")
    except ValueError:
        return True


MOST_BYTES = 1_000_000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)
OUTER = ("router", "app", "endpoint", "path_params", "route", "app_root_path")
"""What an application around ours leaves in the scope: its routes, which ours are not."""


class TooLargeError(Exception):
    """A body has more than MOST_BYTES."""


class RequestEnvelope:
    """What each request passes, wherever the application is mounted."""

    def __init__(self, app: ASGIApp, close: Callable[[], None]) -> None:
        self._app = app
        self.close = close
        """Gives the connections back; a process that ends need not call it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MOST_BYTES:
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
