"""Groups of tasks."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import is_part, render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.asked import row_id
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.monitor.pages.groups import GroupPage, Groups, group_page, groups

KEEP_S = 2.0


def _groups(request: Request, desk: Desk) -> Groups:
    only_open = request.query_params.get("open", "") == "yes"
    return desk.reader.read(("groups", only_open), lambda c: groups(c, only_open=only_open), KEEP_S)


@requires(Role.VIEWER)
async def show_groups(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_groups, request, desk)
    return render(request, "groups/list.html", model=model, at=model.at)


@requires(Role.VIEWER, answers=Groups, query=("open",))
async def groups_json(request: Request, desk: Desk) -> Response:
    """The newest groups; `open=yes`: those that are not over."""
    return answer(request, await run_in_threadpool(_groups, request, desk))


def _group(request: Request, desk: Desk) -> GroupPage:
    group_id = row_id(request.path_params["group_id"])
    model = desk.reader.read(("group", group_id), lambda c: group_page(c, group_id), KEEP_S)
    if model is None:
        raise HttpError(404, f"There is no group {group_id}. It may have been pruned.")
    return model


@requires(Role.VIEWER)
async def show_group(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_group, request, desk)
    name = "groups/live.html" if is_part(request) else "groups/group.html"
    return render(request, name, model=model, at=model.at)


@requires(Role.VIEWER, answers=GroupPage)
async def group_json(request: Request, desk: Desk) -> Response:
    """One group, and the first of its members."""
    return answer(request, await run_in_threadpool(_group, request, desk))


ROUTES = (
    ("/groups", show_groups, "GET"),
    ("/groups/{group_id}", show_group, "GET"),
    ("/api/groups", groups_json, "GET"),
    ("/api/groups/{group_id}", group_json, "GET"),
)
