"""Overview and its history."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import is_part, render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.domain.finding import Finding
from tasks_app.monitor.pages.history import RANGES, History, task_history
from tasks_app.monitor.pages.overview import Overview, findings, overview

PARTS = ("now", "queues", "causes")
"""Of Overview, each replaced by itself: the one that somebody uses rests."""
KEEP_S, FINDINGS_S, HISTORY_S = 2.0, 10.0, 30.0
REST = 100
"""A page that stays open takes no more than a hundredth of one core of the database for each."""


def _overview(desk: Desk) -> Overview:
    return desk.reader.read("overview", lambda c: overview(c, desk.settings), KEEP_S, REST)


def _findings(desk: Desk) -> tuple[Finding, ...]:
    reader = desk.reader
    return reader.soon("findings", lambda: findings(reader.engine, desk.settings), FINDINGS_S, REST)


@requires(Role.VIEWER)
async def show_overview(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_overview, desk)
    found = await run_in_threadpool(_findings, desk)
    part = request.query_params.get("part", "")
    name = f"overview/{part if is_part(request) and part in PARTS else 'page'}.html"
    within = _within(request)
    return render(request, name, model=model, findings=found, at=model.at, within=within)


@requires(Role.VIEWER, answers=Overview)
async def overview_json(request: Request, desk: Desk) -> Response:
    """Pending, due, running and failed tasks by queue and name."""
    return answer(request, await run_in_threadpool(_overview, desk))


def _within(request: Request) -> str:
    within = request.query_params.get("within", "24h")
    if within not in RANGES:
        raise HttpError(400, f"The time is none of {', '.join(RANGES)}. Correct the address.")
    return within


def _history(desk: Desk, within: str) -> History:
    return desk.reader.read(("history", within), lambda c: task_history(c, within), HISTORY_S)


@requires(Role.VIEWER)
async def show_history(request: Request, desk: Desk) -> Response:
    """Return a part of Overview, which loads it: the figures of now do not wait for it."""
    model = await run_in_threadpool(_history, desk, _within(request))
    name = "names" if request.query_params.get("part") == "names" else "history"
    return render(request, f"overview/{name}.html", model=model, ranges=list(RANGES))


@requires(Role.VIEWER, answers=History, query=("within",))
async def history_json(request: Request, desk: Desk) -> Response:
    """How tasks ended within 1h, 24h or 7d, and how long they waited and ran."""
    return answer(request, await run_in_threadpool(_history, desk, _within(request)))


ROUTES = (
    ("/", show_overview, "GET"),
    ("/history", show_history, "GET"),
    ("/api/overview", overview_json, "GET"),
    ("/api/history", history_json, "GET"),
)
