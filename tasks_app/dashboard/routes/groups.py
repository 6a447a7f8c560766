"""Groups of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import is_part, render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.acting import ActionAnswer, act
from tasks_app.dashboard.routes.asked import fields, row_id
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.monitor.pages.groups import GroupPage, Groups, group_page, groups
from tasks_app.runtime.api.groups import cancel_group

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


@dataclass(frozen=True, slots=True)
class Reason:
    """Why, for the audit."""

    why: Annotated[str, Field(max_length=300)] = ""


@requires(Role.OPERATOR, answers=ActionAnswer, takes=Reason)
async def cancel(request: Request, desk: Desk) -> Response:
    """Cancel the members that have not ended; those that run are told."""
    group_id = (await run_in_threadpool(_group, request, desk)).group.id
    why = (await fields(request, Reason)).why

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        done = cancel_group(connection, group_id, by=who, why=why)
        said = f"{done.cancelled} cancelled, {done.requested} told to stop."
        return ActionAnswer(said, changed=bool(done.cancelled or done.requested))

    return await act(request, desk, carry_out, back=f"/groups/{group_id}")


ROUTES = (
    ("/groups", show_groups, "GET"),
    ("/groups/{group_id}", show_group, "GET"),
    ("/groups/{group_id}/cancel", cancel, "POST"),
    ("/api/groups", groups_json, "GET"),
    ("/api/groups/{group_id}", group_json, "GET"),
    ("/api/groups/{group_id}/cancel", cancel, "POST"),
)
