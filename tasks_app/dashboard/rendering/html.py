"""Templates, with everything escaped, and what they call."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from tasks_app.dashboard.security import Role
from tasks_app.domain.explain.words import distance, exact

FOLDER = Path(__file__).parents[1]
STATIC = FOLDER / "static"
NOTHING = "-"
SECOND, MINUTE = 1_000, 60_000
_BADGES = {
    "PENDING": "wait",
    "RUNNING": "run",
    "SUCCEEDED": "ok",
    "FAILED": "bad",
    "CANCELLED": "off",
    "SKIPPED": "off",
    "EXPIRED": "warn",
}


def render(request: Request, name: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page. It is never stored: it shows data, and a token."""
    identity = getattr(request.state, "identity", None)
    role = getattr(identity, "role", None)
    page = _TEMPLATES.get_template(name).render(
        root=request.scope.get("root_path", ""),
        path=request.url.path,
        who=getattr(identity, "who", ""),
        role=role.name.lower() if role else "",
        acts=role is not None and role >= Role.OPERATOR,
        token=getattr(request.state, "token", ""),
        theme=_theme(request),
        version=VERSION,
        **values,
    )
    return HTMLResponse(page, status, headers={"Cache-Control": "no-store"})


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


def _span(ms: float | None) -> str:
    if ms is None:
        return NOTHING
    if ms < SECOND:
        return f"{ms:.0f} ms"
    return f"{ms / SECOND:.1f} s" if ms < 2 * MINUTE else f"{ms / MINUTE:.0f} min"


def _badge(state: str) -> Markup:
    return Markup('<span class="badge {}">{}</span>').format(_BADGES.get(state, "off"), state)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _query(**values: Any) -> Markup:
    return escape(urlencode({name: value for name, value in values.items() if value}))


_TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals.update(age=_age, badge=_badge, query=_query, exact=exact)
_TEMPLATES.filters.update(number=_number, span=_span, json=_json)
VERSION = sha256(
    b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()) if path.is_file())
).hexdigest()[:12]
"""Of all static files: their addresses change with them."""
