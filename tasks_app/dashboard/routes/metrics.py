"""The metrics, for a Prometheus that has no process of its own to ask."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import requires
from tasks_app.monitor.metrics.exposition import CONTENT_TYPE


@requires(Role.VIEWER, scraped=True)
async def show_metrics(_request: Request, desk: Desk) -> Response:
    """Return what ``tasks-app metrics`` shows."""
    text = await run_in_threadpool(desk.metrics.read)
    return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})


ROUTES = (("/metrics", show_metrics, "GET"),)
