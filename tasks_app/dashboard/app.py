"""The dashboard as one ASGI application: for uvicorn, for Flower, or mounted in the user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tasks_app.actions.action import Role
from tasks_app.dashboard import security
from tasks_app.dashboard.html import STATIC, render
from tasks_app.dashboard.json_api import describe, problem
from tasks_app.dashboard.reader import AppState, PageReader
from tasks_app.dashboard.routes import actions, bulks, flows, pages
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.monitor.metrics import MetricsReader
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import sqlstate

_CANCELLED, _NO_TABLE = "57014", "42P01"
_UNAUTHORIZED, _WRONG_METHOD = 401, 405


@security.requires(Role.VIEWER, answers=dict[str, Any])
async def show_openapi(request: Request, _: AppState) -> Response:
    """This description, as OpenAPI 3.1."""
    return JSONResponse(describe(ROUTES, request.scope.get("root_path", "")))


async def show_alive(_: Request) -> Response:
    """For probes: without a password, and without the database."""
    return PlainTextResponse("alive\n")


# Path, handler and method; each handler declares its role with @security.requires.
ROUTES = (
    *actions.EDIT_ROUTES,
    *bulks.ROUTES,
    *flows.ROUTES,
    *pages.ROUTES,  # after those whose last segment is not an id
    *actions.ROUTES,
    ("/api/openapi.json", show_openapi, "GET"),
)


def dashboard_app(
    settings: Settings, *, role: security.RoleOf | None = None, who: security.WhoOf | None = None
) -> security.RequestEnvelope:
    """Return the dashboard, to be served or mounted under any prefix.

    ``role`` returns ``"viewer"``, ``"operator"``, ``"admin"`` or None for a request; None is
    refused. ``who`` returns the user's name for the audit. Both may be async. Without ``role`` the
    passwords of the settings decide; without those it answers only this machine.
    """
    LOG.level = Logged(settings.transitions)
    reader = PageReader(settings.database)
    database = Database(settings.database, prepare=settings.prepare)
    state = AppState(settings, reader, database, MetricsReader(reader, settings))
    visitor_of = partial(security.identify, settings=settings, role=role, who=who)
    app = Starlette(
        routes=[
            *(
                Route(path, security.guarded(handler, visitor_of, state), methods=[method])
                for path, handler, method in ROUTES
            ),
            Route("/healthz", show_alive),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={
            security.HttpError: _refused,
            HTTPException: _not_routed,
            security.TooLargeError: _answer_with(413, "The request is over 1 MB. Send less."),
            DBAPIError: _database_failed,
            PoolTimeoutError: _answer_with(
                503, "The dashboard's connections are all in use. Try again."
            ),
            Exception: _answer_with(500, "The dashboard has a bug. Its log has the traceback."),
        },
    )

    def close() -> None:
        reader.close()
        database.dispose()

    return security.RequestEnvelope(app, close)


def _answer(request: Request, status: int, sentence: str) -> Response:
    if security.is_api(request):
        return problem(status, sentence)
    return render(request, "message.html", status=status, sentence=sentence, at=None)


def _answer_with(status: int, sentence: str) -> Callable[[Request, Exception], Response]:
    return lambda request, _: _answer(request, status, sentence)


def _refused(request: Request, error: Any) -> Response:
    response = _answer(request, error.status, str(error))
    if error.status == _UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Basic realm="tasks_app", charset="UTF-8"'
    return response


def _not_routed(request: Request, error: Any) -> Response:
    why = "There is no such page."
    if error.status_code == _WRONG_METHOD:
        why = f"This address does not take {request.method}."
    return _answer(request, error.status_code, why)


def _database_failed(request: Request, error: Any) -> Response:
    state = sqlstate(error)
    if state == _CANCELLED:
        why = "The database took too long for this. Narrow the filter by queue, name or pool."
    elif state == _NO_TABLE:
        why = "The schema is missing. Run: tasks-app migrate"
    elif state:
        why = f"The database refused this (SQLSTATE {state}). Run: tasks-app doctor"
    else:
        why = str(why_unreachable(str(error.orig)))
    return _answer(request, 503, why)
