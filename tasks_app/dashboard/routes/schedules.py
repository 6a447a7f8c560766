"""The list of schedules, one schedule, and what can be done to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import is_part, render, segment
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.acting import ActionAnswer, act
from tasks_app.dashboard.routes.asked import fields, filters, named
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.domain.schedules.overlap import Overlap
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.monitor.pages.schedules import (
    FILTERS,
    RULE,
    STANDINGS,
    SchedulePage,
    Schedules,
    schedule_page,
    schedules,
)
from tasks_app.runtime.schedules import schedules as verbs

KEEP_S = 2.0


@dataclass(frozen=True, slots=True)
class Rule:
    """What is to change of a schedule; what is left out stays."""

    cron: str | None = None
    every: str | None = None
    timezone: str | None = None
    missed: str | None = None
    overlap: str | None = None
    queue: str | None = None
    priority: int | None = None


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


def _run(connection: Connection, found: Schedule, who: str) -> ActionAnswer:
    made = verbs.run_schedule(connection, found.name, by=who)
    if made is None or not made.created:
        return ActionAnswer(f"No task was made: task {made} has its unique_key.", changed=False)
    return ActionAnswer(f"Task {made} was made. The next instants stay as they are.")


def _pause(connection: Connection, found: Schedule, who: str) -> ActionAnswer:
    if not found.enabled:
        return ActionAnswer("Nothing was changed: it is paused.", changed=False)
    verbs.disable_schedule(connection, found.name, by=who)
    return ActionAnswer("Paused. Instants until it is resumed make no task.")


def _resume(connection: Connection, found: Schedule, who: str) -> ActionAnswer:
    if found.enabled and found.remark is None:
        return ActionAnswer("Nothing was changed: it is not paused.", changed=False)
    verbs.enable_schedule(connection, found.name, by=who)
    return ActionAnswer("Resumed, from now on.")


ACTIONS: dict[str, Callable[[Connection, Schedule, str], ActionAnswer]] = {
    "run": _run,
    "pause": _pause,
    "resume": _resume,
}


@requires(Role.OPERATOR, answers=ActionAnswer)
async def act_on_schedule(request: Request, desk: Desk) -> Response:
    """Make a task now (run), or say whether it fires (pause, resume)."""
    verb = ACTIONS.get(request.path_params["action"])
    if verb is None:
        raise HttpError(404, "There is no such action. Go back to the schedule.")
    return await _act(request, desk, verb)


@requires(Role.ADMIN, answers=ActionAnswer, takes=Rule)
async def change_schedule(request: Request, desk: Desk) -> Response:
    """Change the rule, queue or priority. What is left out stays."""
    rule = await fields(request, Rule)
    given: Any = {word: value for word, value in asdict(rule).items() if value is not None}

    def carry_out(connection: Connection, found: Schedule, who: str) -> ActionAnswer:
        changed = verbs.change_schedule(connection, found.name, by=who, **given)
        if changed is None or changed == found:
            return ActionAnswer("Nothing was changed: it is so already.", changed=False)
        return ActionAnswer("Changed. Code that declares the schedule leaves the change alone.")

    return await _act(request, desk, carry_out)


@requires(Role.ADMIN, answers=ActionAnswer)
async def remove_schedule(request: Request, desk: Desk) -> Response:
    """Delete a schedule; its tasks stay."""

    def carry_out(connection: Connection, found: Schedule, who: str) -> ActionAnswer:
        verbs.remove_schedule(connection, found.name, by=who)
        return ActionAnswer(f"Schedule {found.name} was removed. Its tasks stay.")

    return await _act(request, desk, carry_out, back="/schedules")


async def _act(
    request: Request,
    desk: Desk,
    verb: Callable[[Connection, Schedule, str], ActionAnswer],
    back: str | None = None,
) -> Response:
    name = named(request, "name")

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        found = verbs.get_schedule(connection, name)
        if found is None:
            raise HttpError(404, f"There is no schedule {name}. It may have been removed.")
        return verb(connection, found, who)

    return await act(request, desk, carry_out, back=back or f"/schedules/{segment(name)}")


# A name may hold slashes: the last segment of an action's address is the action.
ROUTES = (
    ("/schedules", show_schedules, "GET"),
    ("/schedules/{name:path}", show_schedule, "GET"),
    ("/schedules/{name:path}/change", change_schedule, "POST"),
    ("/schedules/{name:path}/remove", remove_schedule, "POST"),
    ("/schedules/{name:path}/{action}", act_on_schedule, "POST"),
    ("/api/schedules", schedules_json, "GET"),
    ("/api/schedules/{name:path}", schedule_json, "GET"),
    ("/api/schedules/{name:path}/change", change_schedule, "POST"),
    ("/api/schedules/{name:path}/remove", remove_schedule, "POST"),
    ("/api/schedules/{name:path}/{action}", act_on_schedule, "POST"),
)
