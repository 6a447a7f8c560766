"""Templates, with everything escaped, and what they call."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.same_site import set_cookie
from tasks_app.domain.explain.words import distance, exact, span
from tasks_app.monitor.pages.plot import plot

FOLDER = Path(__file__).parents[1]
STATIC = FOLDER / "static"
NOTHING = "-"
PAGES = (
    ("/", "Overview", "o"),
    ("/tasks", "Tasks", "t"),
    ("/errors", "Errors", "e"),
    ("/schedules", "Schedules", "s"),
    ("/queues", "Queues", "q"),
    ("/groups", "Groups", "r"),
    ("/batches", "Batches", "b"),
    ("/workers", "Workers", "w"),
    ("/audit", "Audit", "a"),
)
"""Path, name, and the key that leads there after g."""
TOLD = "tasks_app_told"
LONGEST_TOLD = 500
_CHANGED, _UNCHANGED = "+", "-"
_BADGES = {
    "PENDING": "wait",
    "RUNNING": "run",
    "SUCCEEDED": "ok",
    "FAILED": "bad",
    "CANCELLED": "off",
    "SKIPPED": "off",
    "EXPIRED": "warn",
    "COMPLETED": "ok",
    "STOPPING": "warn",
    "STOPPED": "warn",
    "WAITING": "wait",
    "PLANNING": "run",
    "COMPENSATING": "warn",
    "REDUCING": "run",
    "queued": "wait",
    "broken": "bad",
    "open": "bad",
    "closed": "ok",
    "probing": "warn",
    "ramping": "warn",
}
"""By state of a task, outcome of an instant, state of a breaker."""


def render(request: Request, name: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page. It is never stored: it shows data, and a token."""
    identity = getattr(request.state, "identity", None)
    role = getattr(identity, "role", None)
    told = "" if is_part(request) else unquote(request.cookies.get(TOLD, ""))
    page = _TEMPLATES.get_template(name).render(
        root=request.scope.get("root_path", ""),
        here=_here(request),
        flower=request.scope.get("tasks_app.flower"),
        who=getattr(identity, "who", ""),
        role=role.name.lower() if role else "",
        acts=role is not None and role >= Role.OPERATOR,
        admin=role is Role.ADMIN,
        token=getattr(request.state, "token", ""),
        theme=_theme(request),
        version=VERSION,
        pages=PAGES,
        told=told[1:],
        changed=told[:1] == _CHANGED,
        **values,
    )
    response = HTMLResponse(page, status, headers={"Cache-Control": "no-store"})
    if told:
        set_cookie(request, response, TOLD, "")
    return response


def tell(request: Request, response: Response, said: str, *, changed: bool) -> None:
    """Let the next page that is shown say what came of an action, once."""
    value = quote((_CHANGED if changed else _UNCHANGED) + said[:LONGEST_TOLD])
    set_cookie(request, response, TOLD, value)


def is_part(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


def _here(request: Request) -> str:
    """Return the page of the menu that the address lies under."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"
    under = [to for to, _, _ in PAGES if path == to or (to != "/" and path.startswith(f"{to}/"))]
    return under[0] if under else ""


def _theme(request: Request) -> str:
    given = request.cookies.get("theme", "")
    return given if given in ("light", "dark") else ""


def _age(at: datetime | None, now: datetime) -> Markup:
    """Return how long ago, which a script keeps true, with the instant on hover."""
    if at is None:
        return escape(NOTHING)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.astimezone(UTC).isoformat(), exact(at), distance(at, now)
    )


def _number(value: int, *, more: bool = False) -> str:
    return f"{value:,}{'+' if more else ''}"


def _badge(state: str) -> Markup:
    return Markup('<span class="badge {}">{}</span>').format(_shape(state), state)


def _shape(state: str) -> str:
    return _BADGES.get(state, "off")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def segment(name: str) -> str:
    """Return a name as one segment of an address, whatever is in it."""
    return quote(name, safe="")


def _query(**values: Any) -> Markup:
    return escape(urlencode({name: value for name, value in values.items() if value}))


_TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals.update(
    plot=lambda history: Markup(plot(history)),  # noqa: S704  it escapes what it is given
    age=_age,
    badge=_badge,
    shape=_shape,
    query=_query,
    exact=exact,
)
_TEMPLATES.filters.update(number=_number, span=span, json=_json, segment=segment)
VERSION = sha256(
    b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()) if path.is_file())
).hexdigest()[:12]
"""Of all static files: their addresses change with them."""
