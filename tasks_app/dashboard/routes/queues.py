"""The list of queues, one queue, and who may stop them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
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
from tasks_app.monitor.pages.queue import QueuePage, queue_page
from tasks_app.monitor.pages.queues import FILTERS, Queues, queues
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api import queues as verbs
from tasks_app.runtime.api.limits import share_queue, unshare_queue

KEEP_S = 2.0


@dataclass(frozen=True, slots=True)
class Pausing:
    """Until when, and why. With neither time it lasts until somebody resumes the queue."""

    reason: str = ""
    resume_in: str | None = None
    """Such as ``2h``."""
    resume_at: datetime | None = None
    """Without a zone it is in UTC."""


@dataclass(frozen=True, slots=True)
class Rules:
    """All settings of a queue; what is left out is removed."""

    windows: str | list[str] = ""
    """Such as ``mon-fri 22:00-06:00 Europe/Berlin not on CALENDAR``; of a form one a line."""
    running_below: int | None = None
    waiting_below: str | None = None
    retry: str | None = None
    max_attempts: int | None = None
    timeout: str | None = None
    hard_timeout: str | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """How the fair keys of a queue share it."""

    weights: str | dict[str, float] = ""
    """Keys that are not named weigh 1; of a form one a line, ``key=2``."""


def _queues(request: Request, desk: Desk) -> Queues:
    given = filters(request, FILTERS)
    key = ("queues", tuple(given.items()))
    return desk.reader.read(key, lambda c: queues(c, desk.settings, given), KEEP_S)


@requires(Role.VIEWER)
async def show_queues(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_queues, request, desk)
    name = "queues/live.html" if is_part(request) else "queues/list.html"
    return render(request, name, model=model, at=model.at, queue="")


@requires(Role.VIEWER, answers=Queues, query=FILTERS)
async def queues_json(request: Request, desk: Desk) -> Response:
    """All queues, those that stand still first; breakers, limits and locks."""
    return answer(request, await run_in_threadpool(_queues, request, desk))


def _queue(request: Request, desk: Desk) -> QueuePage:
    queue = named(request, "queue")
    if queue == EVERY_QUEUE:
        raise HttpError(404, "No queue is called *. See the page Queues.")
    return desk.reader.read(("queue", queue), lambda c: queue_page(c, desk.settings, queue), KEEP_S)


@requires(Role.VIEWER)
async def show_queue(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_queue, request, desk)
    name = "queues/queue_live.html" if is_part(request) else "queues/queue.html"
    return render(request, name, model=model, at=model.at, queue=model.line.queue)


@requires(Role.VIEWER, answers=QueuePage)
async def queue_json(request: Request, desk: Desk) -> Response:
    """One queue: its state, tasks by name, workers, limits, shares, breakers and locks."""
    return answer(request, await run_in_threadpool(_queue, request, desk))


@requires(Role.OPERATOR, answers=ActionAnswer, takes=Pausing)
async def pause_queue(request: Request, desk: Desk) -> Response:
    """Let nothing of the queue begin; what runs goes on."""
    return await _pause(request, desk, named(request, "queue"))


@requires(Role.OPERATOR, answers=ActionAnswer)
async def resume_queue(request: Request, desk: Desk) -> Response:
    """Let the queue run again."""
    return await _resume(request, desk, named(request, "queue"))


@requires(Role.ADMIN, answers=ActionAnswer, takes=Pausing)
async def pause_every_queue(request: Request, desk: Desk) -> Response:
    """Let nothing of any queue begin, also of those that come later; what runs goes on."""
    return await _pause(request, desk, EVERY_QUEUE)


@requires(Role.ADMIN, answers=ActionAnswer)
async def resume_every_queue(request: Request, desk: Desk) -> Response:
    """Let all queues run again, also those that were paused by themselves."""
    return await _resume(request, desk, EVERY_QUEUE)


async def _pause(request: Request, desk: Desk, queue: str) -> Response:
    given = await fields(request, Pausing)
    until = given.resume_at
    if until is not None and until.utcoffset() is None:
        until = until.replace(tzinfo=UTC)

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        changed = verbs.pause_queue(
            connection, queue, given.reason, resume_at=until, resume_in=given.resume_in, by=who
        )
        if not changed:
            return ActionAnswer(
                "Nothing was changed: it is paused. Resume it first.", changed=False
            )
        return ActionAnswer(f"{_called(queue)} is paused. What runs goes on.")

    return await act(request, desk, carry_out, back=address_of(queue))


async def _resume(request: Request, desk: Desk, queue: str) -> Response:
    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        resumed = verbs.resume_queue(connection, queue, by=who)
        if verbs.get_queue(connection, EVERY_QUEUE) is not None:
            said = "Every queue is paused: an admin can resume them on the page Queues."
            return ActionAnswer(said, changed=bool(resumed))
        if not resumed:
            return ActionAnswer("Nothing was changed: it is not paused.", changed=False)
        return ActionAnswer(f"{_called(queue)} is not paused any more.")

    return await act(request, desk, carry_out, back=address_of(queue))


@requires(Role.ADMIN, answers=ActionAnswer, takes=Rules)
async def change_queue(request: Request, desk: Desk) -> Response:
    """Say when the queue runs, and what its tasks have by default. What is left out is removed."""
    queue, given = named(request, "queue"), await fields(request, Rules)
    rules: Any = {name: getattr(given, name) for name in Rules.__slots__}
    windows = given.windows
    rules["windows"] = (_lines(windows) if isinstance(windows, str) else windows) or None

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        if verbs.change_queue(connection, queue, by=who, **rules) is None:
            return ActionAnswer(f"Queue {queue} has no settings any more.")
        return ActionAnswer("Changed. It counts from the next claim on.")

    return await act(request, desk, carry_out, back=address_of(queue))


@requires(Role.ADMIN, answers=ActionAnswer, takes=Weights)
async def share(request: Request, desk: Desk) -> Response:
    """Let the fair keys of the queue share what runs."""
    queue, given = named(request, "queue"), await fields(request, Weights)
    said = given.weights
    weights = dict(map(_weight, _lines(said))) if isinstance(said, str) else said

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        share_queue(connection, queue, weights, by=who)
        return ActionAnswer(f"Queue {queue} is shared by fair key.")

    return await act(request, desk, carry_out, back=address_of(queue))


@requires(Role.ADMIN, answers=ActionAnswer)
async def unshare(request: Request, desk: Desk) -> Response:
    """Let priority and age alone decide in the queue."""
    queue = named(request, "queue")

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        if not unshare_queue(connection, queue, by=who):
            return ActionAnswer("Nothing was changed: it is not shared.", changed=False)
        return ActionAnswer(f"In queue {queue} priority and age decide.")

    return await act(request, desk, carry_out, back=address_of(queue))


def address_of(queue: str) -> str:
    """Return the page of a queue; of none or all of them the list."""
    return "/queues" if queue in ("", EVERY_QUEUE) else f"/queues/{segment(queue)}"


def _called(queue: str) -> str:
    return "Every queue" if queue == EVERY_QUEUE else f"Queue {queue}"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _weight(line: str) -> tuple[str, float]:
    key, _, number = line.rpartition("=")
    try:
        return key.strip(), float(number)
    except ValueError:
        why = f"{line!r:.60} is no weight. Write one a line, such as key=2."
        raise HttpError(400, why) from None


# A name may hold slashes: the last segment of an action's address is the action.
_ACTIONS = (
    ("/queues/*/pause", pause_every_queue, "POST"),
    ("/queues/*/resume", resume_every_queue, "POST"),
    ("/queues/{queue:path}/pause", pause_queue, "POST"),
    ("/queues/{queue:path}/resume", resume_queue, "POST"),
    ("/queues/{queue:path}/change", change_queue, "POST"),
    ("/queues/{queue:path}/share", share, "POST"),
    ("/queues/{queue:path}/unshare", unshare, "POST"),
)
ROUTES = (
    ("/queues", show_queues, "GET"),
    ("/queues/{queue:path}", show_queue, "GET"),
    ("/api/queues", queues_json, "GET"),
    ("/api/queues/{queue:path}", queue_json, "GET"),
    *_ACTIONS,
    *((f"/api{path}", handler, method) for path, handler, method in _ACTIONS),
)
