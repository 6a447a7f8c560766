"""The search of every page: to what is called so, or to a list of what may be meant."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import place_of, render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.acting import go_to
from tasks_app.dashboard.routes.asked import filters
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import requires
from tasks_app.monitor.pages.find import Hits, find


def _hits(request: Request, desk: Desk) -> Hits:
    asked = filters(request, ("q",)).get("q", "")
    return desk.reader.read(("find", asked), lambda c: find(c, asked))


@requires(Role.VIEWER)
async def show_found(request: Request, desk: Desk) -> Response:
    """Lead to the only one that is meant, else list them."""
    model = await run_in_threadpool(_hits, request, desk)
    if model.only:
        return go_to(request, place_of(model.only))
    return render(request, "find.html", model=model, at=model.at)


@requires(Role.VIEWER, answers=Hits, query=("q",))
async def found_json(request: Request, desk: Desk) -> Response:
    """What has this id, key or name, or contains it."""
    return answer(request, await run_in_threadpool(_hits, request, desk))


ROUTES = (("/find", show_found, "GET"), ("/api/find", found_json, "GET"))
