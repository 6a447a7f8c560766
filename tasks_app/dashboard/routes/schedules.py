"""The list of schedules, one schedule, and what can be done to it."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import is_part, render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.asked import filters, named
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.domain.schedules.overlap import Overlap
from tasks_app.monitor.pages.schedules import (
    FILTERS,
    RULE,
    STANDINGS,
    SchedulePage,
    Schedules,
    schedule_page,
    schedules,
)

KEEP_S = 2.0


def _schedules(request: Request, desk: Desk) -> Schedules:
    given = filters(request, FILTERS)
    if given.get("enabled", "yes") not in STANDINGS:
        raise HttpError(400, f"enabled is none of {', '.join(STANDINGS)}. Correct the address.")
    after = filters(request, ("after",)).get("after")
    key = ("schedules", tuple(given.items()), after)
    return desk.reader.read(key, lambda c: schedules(c, given, after=after), KEEP_S)


@requires(Role.VIEWER)
async def show_schedules(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_schedules, request, desk)
    name = "schedules/lines.html" if is_part(request) else "schedules/list.html"
    return render(request, name, model=model, at=model.at, after=request.query_params.get("after"))


@requires(Role.VIEWER, answers=Schedules, query=(*FILTERS, "after"))
async def schedules_json(request: Request, desk: Desk) -> Response:
    """Schedules by name, with their last instants; `after` is `following` of the page before."""
    return answer(request, await run_in_threadpool(_schedules, request, desk))


def _schedule(request: Request, desk: Desk) -> SchedulePage:
    name, given = named(request, "name"), filters(request, RULE)
    key = ("schedule", name, tuple(given.items()))
    model = desk.reader.read(key, lambda c: schedule_page(c, name, given))
    if model is None:
        raise HttpError(404, f"There is no schedule {name}. It may have been removed.")
    return model


@requires(Role.VIEWER)
async def show_schedule(request: Request, desk: Desk) -> Response:
    """Return the page; with fields of a change, also what it would lead to."""
    model = await run_in_threadpool(_schedule, request, desk)
    if is_part(request):
        return render(request, "schedules/live.html", model=model)
    status = 400 if model.change and model.change.refused else 200
    overlaps = list(Overlap)
    return render(
        request,
        "schedules/schedule.html",
        status=status,
        model=model,
        at=model.at,
        overlaps=overlaps,
    )


@requires(Role.VIEWER, answers=SchedulePage, query=RULE)
async def schedule_json(request: Request, desk: Desk) -> Response:
    """One schedule; with fields of a change, `change` says what it would lead to."""
    model = await run_in_threadpool(_schedule, request, desk)
    if model.change and model.change.refused:
        raise HttpError(400, model.change.refused)
    return answer(request, model)


ROUTES = (
    ("/schedules", show_schedules, "GET"),
    ("/schedules/{name:path}", show_schedule, "GET"),
    ("/api/schedules", schedules_json, "GET"),
    ("/api/schedules/{name:path}", schedule_json, "GET"),
)
