"""Workers, and the audit of what operators did."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import is_part, render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.asked import filters, row_id
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import requires
from tasks_app.monitor.pages.audit import FILTERS, Audit, audit
from tasks_app.monitor.pages.workers import Workers, workers

KEEP_S = 2.0


def _workers(desk: Desk) -> Workers:
    return desk.reader.read("workers", lambda c: workers(c, desk.settings), KEEP_S)


@requires(Role.VIEWER)
async def show_workers(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_workers, desk)
    name = "workers/live.html" if is_part(request) else "workers/page.html"
    return render(request, name, model=model, at=model.at)


@requires(Role.VIEWER, answers=Workers)
async def workers_json(request: Request, desk: Desk) -> Response:
    """The children of all workers, and what each runs."""
    return answer(request, await run_in_threadpool(_workers, desk))


def _audit(request: Request, desk: Desk) -> Audit:
    given = filters(request, FILTERS)
    if "task" in given:
        row_id(given["task"])
    before = request.query_params.get("before")
    below = None if before is None else row_id(before)
    key = ("audit", tuple(given.items()), below)
    return desk.reader.read(key, lambda c: audit(c, given, before=below))


@requires(Role.VIEWER)
async def show_audit(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_audit, request, desk)
    return render(request, "audit/list.html", model=model, at=model.at)


@requires(Role.VIEWER, answers=Audit, query=(*FILTERS, "before"))
async def audit_json(request: Request, desk: Desk) -> Response:
    """What operators did, the newest first; filters look at the newest 100,000 lines."""
    return answer(request, await run_in_threadpool(_audit, request, desk))


ROUTES = (
    ("/workers", show_workers, "GET"),
    ("/audit", show_audit, "GET"),
    ("/api/workers", workers_json, "GET"),
    ("/api/audit", audit_json, "GET"),
)
