"""Batch jobs and their instances."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import is_part, render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.asked import filters, row_id
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.monitor.pages.batches import FILTERS, Batches, BatchPage, batch_page, batches
from tasks_app.runtime.handlers.registry import load_handlers

KEEP_S = 2.0


def _batches(request: Request, desk: Desk) -> Batches:
    given = filters(request, FILTERS)
    if given.get("status", "RUNNING") not in list(BatchStatus):
        raise HttpError(400, f"status is none of {', '.join(BatchStatus)}. Correct the address.")
    key = ("batches", tuple(given.items()))
    return desk.reader.read(key, lambda c: batches(c, given), KEEP_S)


@requires(Role.VIEWER)
async def show_batches(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_batches, request, desk)
    statuses = list(BatchStatus)
    return render(request, "batches/list.html", model=model, at=model.at, statuses=statuses)


@requires(Role.VIEWER, answers=Batches, query=FILTERS)
async def batches_json(request: Request, desk: Desk) -> Response:
    """The newest instances of batch jobs."""
    return answer(request, await run_in_threadpool(_batches, request, desk))


def _batch(request: Request, desk: Desk) -> BatchPage:
    load_handlers(desk.settings.modules)  # the job's declaration says the order of its steps
    batch_id = row_id(request.path_params["batch_id"])
    model = desk.reader.read(("batch", batch_id), lambda c: batch_page(c, batch_id), KEEP_S)
    if model is None:
        raise HttpError(404, f"There is no batch {batch_id}. It may have been pruned.")
    return model


@requires(Role.VIEWER)
async def show_batch(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_batch, request, desk)
    name = "batches/live.html" if is_part(request) else "batches/batch.html"
    return render(request, name, model=model, at=model.at)


@requires(Role.VIEWER, answers=BatchPage)
async def batch_json(request: Request, desk: Desk) -> Response:
    """One instance with its steps and their partitions."""
    return answer(request, await run_in_threadpool(_batch, request, desk))


ROUTES = (
    ("/batches", show_batches, "GET"),
    ("/batches/{batch_id}", show_batch, "GET"),
    ("/api/batches", batches_json, "GET"),
    ("/api/batches/{batch_id}", batch_json, "GET"),
)
