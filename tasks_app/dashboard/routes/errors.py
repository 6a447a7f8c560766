"""Errors by cause, and what people say of a cause."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import StringConstraints
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.rendering.html import render
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.acting import ActionAnswer, act
from tasks_app.dashboard.routes.asked import fields, filters, row_id
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.domain.config.field_types import Span
from tasks_app.domain.tasks.fingerprint import parse_fingerprint
from tasks_app.monitor.pages.errors import (
    FILTERS,
    KNOWN,
    SINCE,
    ErrorPage,
    Errors,
    error_page,
    errors,
)
from tasks_app.runtime.api.errors import mark_error_known, mark_error_unknown

KEEP_S = 2.0
BEFORE = ("before", "before_id")
Note = Annotated[str, StringConstraints(max_length=500)]


@dataclass(frozen=True, slots=True)
class Known:
    """What is said of a cause."""

    until: Span | None = None
    """For how long; None: until it is taken back."""
    note: Note = ""


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


def _fingerprint(request: Request) -> str:
    try:
        return parse_fingerprint(request.path_params["fingerprint"]).hex()
    except ValueError as error:
        raise HttpError(400, str(error)) from None


def _instant(text: str) -> datetime:
    at: datetime | None = None
    with suppress(ValueError):
        at = datetime.fromisoformat(text.replace(" ", "+"))  # as a + arrives
    if at is None or at.tzinfo is None:
        raise HttpError(400, "before is an instant with a zone. Correct the address.")
    return at


def _error(request: Request, desk: Desk) -> ErrorPage:
    fingerprint, before = _fingerprint(request), None
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


@requires(Role.OPERATOR, answers=ActionAnswer, takes=Known)
async def mark_known(request: Request, desk: Desk) -> Response:
    """Mark a cause as known."""
    fingerprint, said = _fingerprint(request), await fields(request, Known)
    until: timedelta | None = said.until

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        marked = mark_error_known(connection, fingerprint, by=who, until=until, note=said.note)
        return ActionAnswer("Marked as known.") if marked else ActionAnswer(_GONE, changed=False)

    return await act(request, desk, carry_out, back=f"/errors/{fingerprint}")


@requires(Role.OPERATOR, answers=ActionAnswer)
async def mark_unknown(request: Request, desk: Desk) -> Response:
    """Take the mark of a cause back."""
    fingerprint = _fingerprint(request)

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        if mark_error_unknown(connection, fingerprint, by=who):
            return ActionAnswer("It is not marked any more.")
        return ActionAnswer("It was not marked.", changed=False)

    return await act(request, desk, carry_out, back=f"/errors/{fingerprint}")


_GONE = "Nothing was changed: no failed task has this cause any more."
ROUTES = (
    ("/errors", show_errors, "GET"),
    ("/errors/{fingerprint}", show_error, "GET"),
    ("/errors/{fingerprint}/known", mark_known, "POST"),
    ("/errors/{fingerprint}/unknown", mark_unknown, "POST"),
    ("/api/errors", errors_json, "GET"),
    ("/api/errors/{fingerprint}", error_json, "GET"),
    ("/api/errors/{fingerprint}/known", mark_known, "POST"),
    ("/api/errors/{fingerprint}/unknown", mark_unknown, "POST"),
)
