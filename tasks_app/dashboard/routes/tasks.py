"""Tasks and one task."""

from __future__ import annotations

from typing import NoReturn

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tasks_app.dashboard.rendering.export import FORMATS
from tasks_app.dashboard.rendering.html import is_part, render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.asked import filters, row_id
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.monitor.pages.task import TaskPage, task_page
from tasks_app.monitor.pages.tasks import FILTERS, SINCE, Tasks, page_by_page, tasks
from tasks_app.pool.statistics.unkept import unkept


def _filters(request: Request) -> dict[str, str]:
    given = filters(request, FILTERS)
    if "group" in given:
        row_id(given["group"])
    if given.get("state", State.FAILED) not in list(State):
        raise HttpError(400, f"state is none of {', '.join(State)}. Correct the address.")
    if given.get("since", SINCE[0]) not in SINCE:
        raise HttpError(400, f"since is none of {', '.join(SINCE)}. Correct the address.")
    if "error" in given and "state" not in given:
        given.setdefault("pool", Pool.ERROR)  # a million completed tasks have none to search
    return given


def _tasks(request: Request, desk: Desk) -> Tasks:
    given = _filters(request)
    before = request.query_params.get("before")
    below = None if before is None else row_id(before)
    key = ("tasks", tuple(given.items()), below)
    return desk.reader.read(key, lambda c: tasks(c, given, before=below))


@requires(Role.VIEWER)
async def show_tasks(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_tasks, request, desk)
    return render(
        request,
        "tasks/list.html",
        model=model,
        at=model.at,
        pools=list(Pool),
        states=list(State),
        spans=SINCE,
        asked_below=request.query_params.get("before"),
    )


@requires(Role.VIEWER, answers=Tasks, query=(*FILTERS, "before"))
async def tasks_json(request: Request, desk: Desk) -> Response:
    """Tasks of all pools, the newest first; `before` is `older` of the page before."""
    return answer(request, await run_in_threadpool(_tasks, request, desk))


@requires(Role.VIEWER)
async def export_tasks(request: Request, desk: Desk) -> Response:
    """All that match, without payloads, as CSV or a JSON object a line."""
    given, kind = _filters(request), request.path_params["kind"]
    if kind not in FORMATS:
        raise HttpError(404, f"It is exported as {' or '.join(FORMATS)}. Correct the address.")
    write, media_type = FORMATS[kind]
    return StreamingResponse(
        write(page_by_page(desk.reader.engine, given)),
        media_type=media_type,
        headers={
            "Content-Disposition": f'attachment; filename="tasks.{kind}"',
            "Cache-Control": "no-store",
        },
    )


def _task(request: Request, desk: Desk) -> TaskPage:
    task_id = row_id(request.path_params["task_id"])
    model = desk.reader.read(("task", task_id), lambda c: task_page(c, desk.settings, task_id))
    return model or _not_found(task_id, desk)


def _not_found(task_id: int, desk: Desk) -> NoReturn:
    gone = desk.reader.read("unkept", unkept)
    words = f" {gone.words}" if gone else ""
    raise HttpError(404, f"There is no task {task_id}. It may have been pruned.{words}")


@requires(Role.VIEWER)
async def show_task(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_task, request, desk)
    name = "tasks/live.html" if is_part(request) else "tasks/task.html"
    return render(request, name, model=model, at=model.at)


@requires(Role.ADMIN)
async def show_decrypted(request: Request, desk: Desk) -> Response:
    """Show what is encrypted, by the keys of this process; nothing of it is kept."""
    task_id = row_id(request.path_params["task_id"])

    def read() -> TaskPage | None:
        with desk.reader.engine.connect() as connection:
            return task_page(connection, desk.settings, task_id, decrypt=True)

    model = await run_in_threadpool(lambda: read() or _not_found(task_id, desk))
    return render(request, "tasks/decrypted.html", model=model, at=model.at)


@requires(Role.VIEWER, answers=TaskPage)
async def task_json(request: Request, desk: Desk) -> Response:
    """One task, its failed attempts, and why it does not run."""
    return answer(request, await run_in_threadpool(_task, request, desk))


ROUTES = (
    ("/tasks", show_tasks, "GET"),
    ("/tasks/export.{kind}", export_tasks, "GET"),
    ("/tasks/{task_id}", show_task, "GET"),
    ("/tasks/{task_id}/decrypted", show_decrypted, "GET"),
    ("/api/tasks", tasks_json, "GET"),
    ("/api/tasks/{task_id}", task_json, "GET"),
)
