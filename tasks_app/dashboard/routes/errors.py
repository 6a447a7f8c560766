"""Errors by cause, and what people say of a cause."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.asked import cause, filters, row_id
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.monitor.pages.errors import (
    FILTERS,
    KNOWN,
    SINCE,
    ErrorPage,
    Errors,
    error_page,
    errors,
)

KEEP_S = 2.0
BEFORE = ("before", "before_id")


def _errors(request: Request, desk: Desk) -> Errors:
    given = filters(request, FILTERS)
    for name, known in (("since", SINCE), ("known", KNOWN)):
        if given.get(name, next(iter(known))) not in known:
            raise HttpError(400, f"{name} is none of {', '.join(known)}. Correct the address.")
    key = ("errors", tuple(given.items()))
    return desk.reader.read(key, lambda c: errors(c, given), KEEP_S)


@requires(Role.VIEWER)
async def show_errors(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_errors, request, desk)
    return render(
        request, "errors/list.html", model=model, at=model.at, spans=list(SINCE), known=KNOWN
    )


@requires(Role.VIEWER, answers=Errors, query=FILTERS)
async def errors_json(request: Request, desk: Desk) -> Response:
    """The error pool by cause, most tasks first."""
    return answer(request, await run_in_threadpool(_errors, request, desk))


def _instant(text: str) -> datetime:
    at: datetime | None = None
    with suppress(ValueError):
        at = datetime.fromisoformat(text.replace(" ", "+"))  # as a + arrives
    if at is None or at.tzinfo is None:
        raise HttpError(400, "before is an instant with a zone. Correct the address.")
    return at


def _error(request: Request, desk: Desk) -> ErrorPage:
    fingerprint, before = cause(request), None
    given = filters(request, BEFORE)
    if given:
        before = _instant(given.get("before", "")), row_id(given.get("before_id", "0"))
    key = ("error", fingerprint, before)
    model = desk.reader.read(key, lambda c: error_page(c, fingerprint, before=before), KEEP_S)
    if model is None:
        raise HttpError(404, f"No failed task has the fingerprint {fingerprint} any more.")
    return model


@requires(Role.VIEWER)
async def show_error(request: Request, desk: Desk) -> Response:
    model = await run_in_threadpool(_error, request, desk)
    return render(request, "errors/error.html", model=model, at=model.at)


@requires(Role.VIEWER, answers=ErrorPage, query=BEFORE)
async def error_json(request: Request, desk: Desk) -> Response:
    """One cause and its tasks; `older` goes into `before` and `before_id`."""
    return answer(request, await run_in_threadpool(_error, request, desk))


ROUTES = (
    ("/errors", show_errors, "GET"),
    ("/errors/{fingerprint}", show_error, "GET"),
    ("/api/errors", errors_json, "GET"),
    ("/api/errors/{fingerprint}", error_json, "GET"),
)
