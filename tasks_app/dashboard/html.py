"""Templates, with everything escaped, and how they show values."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tasks_app.actions.action import taken
from tasks_app.actions.table import ACTIONS
from tasks_app.actions.tasks import OF_TASKS
from tasks_app.dashboard.security import Role, set_cookie
from tasks_app.domain.durations import distance_in_words, milliseconds_in_words, to_the_second
from tasks_app.domain.finding import Finding
from tasks_app.monitor.pages.overview import Hit

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
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
_PLACES = {
    "task": "/tasks/{}",
    "group": "/groups/{}",
    "batch": "/batches/{}",
    "error": "/errors/{}",
    "biz_key": "/tasks?biz_key={}",
    "name": "/tasks?name={}",
    "queue": "/queues/{}",
    "schedule": "/schedules/{}",
    "job": "/batches?job={}",
}
"""Where what was found is shown."""
_MENDED_AT = {
    "breakers": ("/queues", "Show breakers"),
    "due tasks": ("/queues", "Show queues"),
    "queues": ("/queues", "Show queues"),
    "locks": ("/queues", "Show locks"),
    "order keys": ("/tasks?state=FAILED", "Show failed"),
    "rescue": ("/tasks?state=RUNNING", "Show running"),
    "schedules": ("/schedules", "Show schedules"),
    "workers": ("/workers", "Show workers"),
}
"""The page that helps, by subject of a finding."""
TOLD = "tasks_app_told"
LONGEST_TOLD = 500
_CHANGED, _UNCHANGED = "+", "-"


def render(request: Request, name: str, *, status: int = 200, **parts: Any) -> HTMLResponse:
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
        level=role or 0,
        token=getattr(request.state, "token", ""),
        theme=_theme(request),
        version=VERSION,
        pages=PAGES,
        told=told[1:],
        changed=told[:1] == _CHANGED,
        **parts,
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


def place_of(hit: Hit) -> str:
    return _PLACES[hit.kind].format(segment(hit.key))


def _mended_at(finding: Finding) -> tuple[str, str] | None:
    return _MENDED_AT.get(finding.subject)


def offered(finding: Finding) -> tuple[str, str, dict[str, str]] | None:
    """Return the action that does what the advice's command would: name, target, fields."""
    match finding.advice.rpartition("tasks-app ")[2].split(" "):
        case ["resume", "--all"]:
            return "queues/*/resume", "", {}
        case ["resume", queue]:
            return "queues/resume", queue, {}
        case ["breakers", "auto", name]:
            return "breakers/override", "", {"dependency": name.rstrip("."), "mode": "auto"}
        case _:
            return None


def segment(name: str) -> str:
    """Return a name as one segment of an address, whatever is in it."""
    return quote(name, safe="")


def _query(**values: Any) -> Markup:
    return escape(urlencode({name: value for name, value in values.items() if value}))


def _without(filters: dict[str, str], name: str) -> Markup:
    return _query(**{each: value for each, value in filters.items() if each != name})


_TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def age(at: datetime | None, now: datetime) -> Markup:
    """Return how long ago, which a script keeps true, with the instant on hover."""
    if at is None:
        return _FAINT.format(NOTHING)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.astimezone(UTC).isoformat(), to_the_second(at), distance_in_words(at, now)
    )


def since(at: datetime | None, now: datetime) -> Markup:
    """Return how long it has lasted, which a script keeps true."""
    if at is None:
        return _FAINT.format(NOTHING)
    return Markup('<time class="span" datetime="{}" title="{}">{}</time>').format(
        at.astimezone(UTC).isoformat(),
        to_the_second(at),
        distance_in_words(at, now).removesuffix(" ago"),
    )


def local(at: datetime, zone: str) -> str:
    """Return weekday and time by the clocks of a zone; nothing in UTC or an unknown one."""
    try:
        there = at.astimezone(ZoneInfo(zone))
    except (ValueError, ZoneInfoNotFoundError):
        return ""
    return "" if zone == "UTC" else f"{there:%a %H:%M}"


def badge(state: str) -> Markup:
    return Markup('<span class="badge {}">{}</span>').format(shape(state), state)


def shape(state: str) -> str:
    return _BADGES.get(state, "off")


NOTHING = "-"
_FAINT = Markup('<span class="faint">{}</span>')
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
_TEMPLATES.globals.update(
    actions={action.name: action for action in ACTIONS if action.path},
    of_tasks=OF_TASKS,
    taken=taken,
    age=age,
    since=since,
    badge=badge,
    local=local,
    shape=shape,
    exact=to_the_second,
    query=_query,
    without=_without,
    place_of=place_of,
    mended_at=_mended_at,
    offered=offered,
)


def number(value: int, *, more: bool = False) -> str:
    return f"{value:,}{'+' if more else ''}" if value or more else _FAINT.format(0)


def span_of(ms: float | None) -> str:
    return _FAINT.format(NOTHING) if ms is None else milliseconds_in_words(ms)


def whole(text: str) -> Markup:
    """Let no line end within an option or a command's name, however narrow the window is."""
    words = (
        _WHOLE.format(word) if "-" in word and len(word) < LONGEST_WHOLE else escape(word)
        for word in text.split(" ")
    )
    return Markup(" ").join(words)


def tick(value: float) -> str:
    return f"{value / THOUSAND:g} k" if value >= 10 * THOUSAND else f"{value:,.0f}"


def clock(at: datetime, *, days: bool) -> str:
    return f"{at.astimezone(UTC):%d %b}" if days else f"{at.astimezone(UTC):%H:%M}"


def linked(text: str, root: str) -> Markup:
    link = rf'<a href="{escape(root)}/tasks/\2">\1 \2</a>'
    return Markup(re.sub(r"\b([Tt]ask) (\d+)\b", link, str(escape(text))))  # noqa: S704  escaped


def indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


_WHOLE = Markup('<span class="whole">{}</span>')
LONGEST_WHOLE = 30
THOUSAND = 1_000
_TEMPLATES.filters.update(
    number=number,
    span=span_of,
    tick=tick,
    clock=clock,
    whole=whole,
    linked=linked,
    json=indented,
    segment=segment,
)
VERSION = sha256(
    b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()) if path.is_file())
).hexdigest()[:12]
"""Of all static files: their addresses change with them."""
