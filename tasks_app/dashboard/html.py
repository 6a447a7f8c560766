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

from tasks_app.actions.action import Role, taken
from tasks_app.actions.table import ACTIONS
from tasks_app.actions.tasks import OF_TASKS
from tasks_app.dashboard.graph import Graph, GraphNode, layout
from tasks_app.dashboard.security import set_cookie
from tasks_app.domain.durations import distance_in_words, milliseconds_in_words, to_the_second
from tasks_app.domain.finding import Finding
from tasks_app.domain.flows import After, MapItems, is_item, items_in_words
from tasks_app.monitor.pages.batches import BatchPage
from tasks_app.monitor.pages.flows import FlowPage
from tasks_app.monitor.pages.overview import Hit

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
# Of all static files: their addresses change with them.
VERSION = sha256(
    b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()) if path.is_file())
).hexdigest()[:12]
# Path, name, and the key that leads there after g.
PAGES = (
    ("/", "Overview", "o"),
    ("/tasks", "Tasks", "t"),
    ("/errors", "Errors", "e"),
    ("/schedules", "Schedules", "s"),
    ("/queues", "Queues", "q"),
    ("/groups", "Groups", "r"),
    ("/flows", "Flows", "f"),
    ("/batches", "Batches", "b"),
    ("/workers", "Workers", "w"),
    ("/audit", "Audit", "a"),
)
# Where a hit of the search is shown.
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
# The page that fixes a finding, by its subject.
_FIXED_AT = {
    "breakers": ("/queues", "Show breakers"),
    "due tasks": ("/queues", "Show queues"),
    "queues": ("/queues", "Show queues"),
    "locks": ("/queues", "Show locks"),
    "order keys": ("/tasks?state=FAILED", "Show failed"),
    "rescue": ("/tasks?state=RUNNING", "Show running"),
    "schedules": ("/schedules", "Show schedules"),
    "workers": ("/workers", "Show workers"),
}
# Shapes of badges, by state of a task, batch or flow, outcome of an instant, state of a breaker.
_SHAPES = {
    "ok": "SUCCEEDED COMPLETED SENT closed",
    "run": "RUNNING PLANNING REDUCING",
    "wait": "PENDING WAITING queued",
    "warn": "EXPIRED STALLED STOPPING STOPPED COMPENSATING probing ramping",
    "bad": "FAILED broken open",
}
_SHAPE_OF = {state: shape for shape, states in _SHAPES.items() for state in states.split()}
NOTICE = "tasks_app_told"
LONGEST_NOTICE, LONGEST_WHOLE = 500, 30
_CHANGED, _UNCHANGED = "+", "-"
THOUSAND = 1_000
_FAINT = Markup('<span class="faint">{}</span>')
_NONE = _FAINT.format("-")
_WHOLE = Markup('<span class="whole">{}</span>')


def render(request: Request, name: str, *, status: int = 200, **parts: Any) -> HTMLResponse:
    """Return a page, not to be stored: it shows data, and a token."""
    identity = getattr(request.state, "identity", None)
    role = getattr(identity, "role", None)
    root = request.scope.get("root_path", "")
    path = request.scope["path"].removeprefix(root) or "/"
    here = [to for to, _, _ in PAGES if path == to or (to != "/" and path.startswith(f"{to}/"))]
    theme = request.cookies.get("theme", "")
    notice = "" if is_part(request) else unquote(request.cookies.get(NOTICE, ""))
    page = _TEMPLATES.get_template(name).render(
        root=root,
        here=here[0] if here else "",
        flower=request.scope.get("tasks_app.flower"),
        who=getattr(identity, "who", ""),
        role=role.name.lower() if role else "",
        acts=role is not None and role >= Role.OPERATOR,
        admin=role is Role.ADMIN,
        level=role or 0,
        token=getattr(request.state, "token", ""),
        theme=theme if theme in ("light", "dark") else "",
        version=VERSION,
        pages=PAGES,
        notice=notice[1:],
        changed=notice[:1] == _CHANGED,
        **parts,
    )
    response = HTMLResponse(page, status, headers={"Cache-Control": "no-store"})
    if notice:
        set_cookie(request, response, NOTICE, "")
    return response


def is_part(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


def set_notice(request: Request, response: Response, sentence: str, *, changed: bool) -> None:
    """Let the next page show the result of an action, once."""
    value = quote((_CHANGED if changed else _UNCHANGED) + sentence[:LONGEST_NOTICE])
    set_cookie(request, response, NOTICE, value)


def _segment(name: str) -> str:
    return quote(name, safe="")


def place_of(hit: Hit) -> str:
    return _PLACES[hit.kind].format(_segment(hit.key))


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


def _query(**values: Any) -> Markup:
    return escape(urlencode({name: value for name, value in values.items() if value}))


def _without(filters: dict[str, str], name: str) -> Markup:
    return _query(**{each: value for each, value in filters.items() if each != name})


def age(at: datetime | None, now: datetime) -> Markup:
    """Return how long ago, with the instant on hover."""
    return _NONE if at is None else _time(at, distance_in_words(at, now))


def since(at: datetime | None, now: datetime) -> Markup:
    """Return how long it has lasted."""
    if at is None:
        return _NONE
    return _time(at, distance_in_words(at, now).removesuffix(" ago"), Markup(' class="span"'))


def _time(at: datetime, words: str, more: str = "") -> Markup:
    """Return words that a script updates."""
    return Markup('<time{} datetime="{}" title="{}">{}</time>').format(
        more, at.astimezone(UTC).isoformat(), to_the_second(at), words
    )


def local(at: datetime, zone: str) -> str:
    """Return weekday and time by the clocks of a zone; nothing in UTC or an unknown one."""
    try:
        there = at.astimezone(ZoneInfo(zone))
    except (ValueError, ZoneInfoNotFoundError):
        return ""
    return "" if zone == "UTC" else f"{there:%a %H:%M}"


def shape(state: str) -> str:
    return _SHAPE_OF.get(state, "off")


def badge(state: str) -> Markup:
    return Markup('<span class="badge {}">{}</span>').format(shape(state), state)


def number(value: int, *, more: bool = False) -> str:
    """Return it with commas; a zero is faint."""
    return f"{value:,}{'+' if more else ''}" if value or more else _FAINT.format(0)


def whole(text: str) -> Markup:
    """Let no line break within an option or a command's name."""
    words = (
        _WHOLE.format(word) if "-" in word and len(word) < LONGEST_WHOLE else escape(word)
        for word in text.split(" ")
    )
    return Markup(" ").join(words)


def linked(text: str, root: str) -> Markup:
    """Return a sentence in which the name of a task is a link."""
    link = rf'<a href="{escape(root)}/tasks/\2">\1 \2</a>'
    return Markup(re.sub(r"\b([Tt]ask) (\d+)\b", link, str(escape(text))))  # noqa: S704  escaped


_LABELS = {After.SUCCESS: "", After.FAILURE: "on failure", After.END: "at its end"}


def flow_graph(page: FlowPage, root: str) -> Graph | None:
    """Return the graph of its events and steps; items of maps are in the box of their map."""
    nodes = [
        GraphNode(
            _node(event.key),
            page.state_of(event),
            f"{root}/events?{urlencode({'key': event.key})}",
            event=event.key,
        )
        for event in page.events
    ]
    for line in page.steps:
        step, state = line.step, line.state
        if is_item(step.name):
            continue
        needs = {need.step: _LABELS[need.after] for need in step.needs}
        needs |= {_node(event.key): "" for event in step.events}
        items = _items(step.items) if step.items else ""
        nodes.append(GraphNode(step.name, state, f"{root}/tasks/{step.task_id}", needs, items))
    return layout(nodes)


def _items(items: MapItems) -> str:
    """Return how many have ended well, short enough to stand beside the state."""
    if items.left:
        return f"{items.succeeded:,} of {items.total:,}"
    return f"{items.total:,} items"


def _node(key: str) -> str:
    """Return a name for the node of an event that no step has."""
    return f"\0{key}"


def batch_graph(page: BatchPage) -> Graph | None:
    """Return the graph of a job that this process knows."""
    if any(line.after is None for line in page.steps):
        return None
    return layout(
        [
            GraphNode(line.step.step, line.step.status, needs=dict.fromkeys(line.after or (), ""))
            for line in page.steps
        ]
    )


def tick(value: float) -> str:
    return f"{value / THOUSAND:g} k" if value >= 10 * THOUSAND else f"{value:,.0f}"


def clock(at: datetime, *, days: bool) -> str:
    return f"{at.astimezone(UTC):%d %b}" if days else f"{at.astimezone(UTC):%H:%M}"


_TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
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
    fixed_at=_FIXED_AT,
    flow_graph=flow_graph,
    items_in_words=items_in_words,
    batch_graph=batch_graph,
    offered=offered,
)
_TEMPLATES.filters.update(
    number=number,
    span=lambda ms: _NONE if ms is None else milliseconds_in_words(ms),
    tick=tick,
    clock=clock,
    whole=whole,
    linked=linked,
    json=lambda value: json.dumps(value, indent=2, ensure_ascii=False, default=str),
    segment=_segment,
)
