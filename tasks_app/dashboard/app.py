"""The dashboard as one ASGI application: for uvicorn, for Flower, or mounted in the user's own."""

from __future__ import annotations

import logging
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

from tasks_app.dashboard.html import STATIC, render
from tasks_app.dashboard.json_api import describe, problem
from tasks_app.dashboard.reader import Desk, PageReader
from tasks_app.dashboard.routes import actions, bulks, pages
from tasks_app.dashboard.security import (
    HttpError,
    RequestEnvelope,
    Role,
    RoleOf,
    TooLargeError,
    WhoOf,
    guarded,
    identify,
    is_api,
    requires,
)
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.monitor.metrics import MetricsReader
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import sqlstate

_log = logging.getLogger("tasks_app.dashboard")
_CANCELLED, _NO_TABLE = "57014", "42P01"


@requires(Role.VIEWER, answers=dict[str, Any])
async def show_openapi(request: Request, _: Desk) -> Response:
    """This description, as OpenAPI 3.1."""
    return JSONResponse(describe(ROUTES, request.scope.get("root_path", "")))


async def show_alive(_: Request) -> Response:
    """For probes: without a password, and without a look at the database."""
    return PlainTextResponse("alive\n")


ROUTES = (
    *actions.EDIT_ROUTES,
    *bulks.ROUTES,
    *pages.ROUTES,  # after those whose last word is no id
    *actions.ROUTES,
    ("/api/openapi.json", show_openapi, "GET"),
)
"""Path, handler and method; each handler says by ``@requires`` who may use it."""


def dashboard_app(
    settings: Settings, *, role: RoleOf | None = None, who: WhoOf | None = None
) -> RequestEnvelope:
    """Return the dashboard, to be served or mounted under any prefix.

    ``role`` says of a request ``"viewer"``, ``"operator"``, ``"admin"`` or None, which is refused;
    ``who`` names who asks, for the audit. Both may be async. Without ``role`` the passwords of the
    settings decide; without those it answers this machine only.
    """
    LOG.level = Logged(settings.transitions)
    url = settings.database
    reader = PageReader(url)
    database = Database(url, prepare=settings.prepare)
    desk = Desk(settings, reader, database, MetricsReader(reader, settings))
    asks = partial(identify, settings=settings, role=role, who=who)
    app = Starlette(
        routes=[
            *(
                Route(path, guarded(handler, asks, desk), methods=[method])
                for path, handler, method in ROUTES
            ),
            Route("/healthz", show_alive),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={
            HttpError: _refused,
            HTTPException: _http,
            TooLargeError: _too_large,
            DBAPIError: _database,
            PoolTimeoutError: _crowded,
            Exception: _broken,
        },
    )

    def close() -> None:
        desk.reader.close()
        desk.database.dispose()

    return RequestEnvelope(app, close)


def _say(request: Request, status: int, said: str) -> Response:
    if is_api(request):
        return problem(status, said)
    return render(request, "message.html", status=status, said=said, at=None)


def _refused(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, HttpError) else 500
    response = _say(request, status, str(error))
    if status == 401:  # noqa: PLR2004
        response.headers["WWW-Authenticate"] = 'Basic realm="tasks_app", charset="UTF-8"'
    return response


def _http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = "This address takes no such request." if status == 405 else "There is no such page."  # noqa: PLR2004
    return _say(request, status, said)


def _too_large(request: Request, _: Exception) -> Response:
    return _say(request, 413, "The request is larger than 1 MB. Send less.")


def _crowded(request: Request, _: Exception) -> Response:
    return _say(request, 503, "The dashboard's connections are all in use. Try again.")


def _database(request: Request, error: Exception) -> Response:
    state = sqlstate(error) if isinstance(error, DBAPIError) else None
    if state == _CANCELLED:
        said = "The database took too long for this. Narrow the filter by queue, name or pool."
    elif state == _NO_TABLE:
        said = "The schema is missing. Run: tasks-app migrate"
    elif state:
        said = f"The database did not do it (SQLSTATE {state}). Run: tasks-app doctor"
    else:
        said = str(why_unreachable(str(getattr(error, "orig", ""))))
    return _say(request, 503, said)


def _broken(request: Request, _: Exception) -> Response:
    return _say(request, 500, "The dashboard has a fault. Its log has the traceback.")
