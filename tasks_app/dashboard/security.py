"""Who asks: by the host's callables, by a password of the settings, or nobody on this machine."""

from __future__ import annotations

import hmac
import inspect
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request

from tasks_app.actions.action import Role
from tasks_app.domain.config.addresses import is_local
from tasks_app.domain.config.dashboard_access import EVERYBODY, read_passwords, read_roles
from tasks_app.domain.config.settings import Settings

RoleOf = Callable[[Request], str | Awaitable[str | None] | None]
WhoOf = Callable[[Request], str | Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks. Without a role they see nothing."""

    who: str
    role: Role | None
    ask: bool = False
    """A name and a password would help."""
    why: str = ""


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
    """Return name and password; a bearer's token is a password without a name."""
    kind, _, value = header.partition(" ")
    if kind.lower() == "bearer":
        return None, value.strip()
    try:
        text = b64decode(value, validate=True).decode() if kind.lower() == "basic" else ""
    except ValueError:
        text = ""
    name, _, password = text.partition(":")
    return name, password
