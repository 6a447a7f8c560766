"""Pages, and the JSON of the same read models."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import RefusedError, requires
from tasks_app.domain.finding import Finding
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.monitor.pages.history import RANGES, History, task_history
from tasks_app.monitor.pages.overview import Overview, findings, overview
from tasks_app.monitor.pages.task import TaskPage, task_page
from tasks_app.monitor.pages.tasks import FILTERS, Tasks, tasks

KEEP_S, FINDINGS_S, HISTORY_S = 2.0, 10.0, 30.0
LONGEST = 300
_MOST_ID = 2**63 - 1


def _overview(desk: Desk) -> Overview:
    return desk.reader.read("overview", lambda c: overview(c, desk.settings), KEEP_S)


def _findings(desk: Desk) -> tuple[Finding, ...]:
    reader = desk.reader
    return reader.kept("findings", lambda: findings(reader.engine, desk.settings), FINDINGS_S)


@requires(Role.VIEWER)
async def show_overview(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_overview, desk)
    found = await run_in_threadpool(_findings, desk)
    part = request.headers.get("hx-request") == "true"
    name = "overview_live.html" if part else "overview.html"
    within = _within(request)
    return render(request, name, model=model, findings=found, at=model.at, within=within)


@requires(Role.VIEWER)
async def overview_json(request: Request, desk: Desk) -> Response:
    return answer(request, await run_in_threadpool(_overview, desk))


def _within(request: Request) -> str:
    within = request.query_params.get("within", "24h")
    if within not in RANGES:
        raise RefusedError(400, f"The time is none of {', '.join(RANGES)}. Correct the address.")
    return within


def _history(desk: Desk, within: str) -> History:
    return desk.reader.read(("history", within), lambda c: task_history(c, within), HISTORY_S)


@requires(Role.VIEWER)
async def show_history(request: Request, desk: Desk) -> Response:
    """Return a part of Overview, which loads it: the figures of now do not wait for it."""
    model = await run_in_threadpool(_history, desk, _within(request))
    return render(request, "history.html", model=model, ranges=list(RANGES))


@requires(Role.VIEWER)
async def history_json(request: Request, desk: Desk) -> Response:
    return answer(request, await run_in_threadpool(_history, desk, _within(request)))


def _tasks(request: Request, desk: Desk) -> Tasks:
    asked = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    filters = {name: value[:LONGEST] for name, value in asked.items() if value}
    if any("\0" in value for value in filters.values()):
        raise RefusedError(400, "A filter has a NUL character. Leave it out.")
    before = request.query_params.get("before")
    below = None if before is None else _id(before)
    key = ("tasks", tuple(filters.items()), below)
    return desk.reader.read(key, lambda c: tasks(c, filters, before=below))


@requires(Role.VIEWER)
async def show_tasks(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_tasks, request, desk)
    return render(
        request, "tasks.html", model=model, at=model.at, pools=list(Pool), states=list(State)
    )


@requires(Role.VIEWER)
async def tasks_json(request: Request, desk: Desk) -> Response:
    return answer(request, await run_in_threadpool(_tasks, request, desk))


def _task(request: Request, desk: Desk) -> TaskPage:
    task_id = _id(request.path_params["task_id"])
    model = desk.reader.read(("task", task_id), lambda c: task_page(c, desk.settings, task_id))
    if model is None:
        raise RefusedError(404, f"There is no task {task_id}. It may have been pruned.")
    return model


@requires(Role.VIEWER)
async def show_task(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_task, request, desk)
    done = request.query_params.get("done", "")
    return render(request, "task.html", model=model, at=model.at, done=done)


@requires(Role.VIEWER)
async def task_json(request: Request, desk: Desk) -> Response:
    return answer(request, await run_in_threadpool(_task, request, desk))


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _MOST_ID):
        raise RefusedError(400, "An id is a whole number. Correct the address.")
    return int(text)
