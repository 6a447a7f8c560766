"""The list of queues, one queue, and who may stop them."""

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
from tasks_app.monitor.pages.queue import QueuePage, queue_page
from tasks_app.monitor.pages.queues import FILTERS, Queues, queues
from tasks_app.pool.tables import EVERY_QUEUE

KEEP_S = 2.0


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


ROUTES = (
    ("/queues", show_queues, "GET"),
    ("/queues/{queue:path}", show_queue, "GET"),
    ("/api/queues", queues_json, "GET"),
    ("/api/queues/{queue:path}", queue_json, "GET"),
)
