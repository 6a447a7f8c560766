"""The routes of all actions, made of their records."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.actions.action import Action, Nothing
from tasks_app.actions.table import ACTIONS
from tasks_app.dashboard.routes.acting import ActionAnswer, act
from tasks_app.dashboard.routes.parameters import cause
from tasks_app.dashboard.routes.parameters import fields
from tasks_app.dashboard.routes.parameters import named
from tasks_app.dashboard.routes.parameters import row_id
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security.guard import Handler, HttpError, requires
from tasks_app.domain.errors import NotThereError
from tasks_app.runtime.handlers.registry import load_handlers


def _route(action: Action) -> Handler:
    takes = None if action.takes is Nothing else action.takes

    async def handler(request: Request, desk: Desk) -> Response:
        target = _target(request, action)
        given: Any = await fields(request, action.takes)
        if action.needs_handlers:
            load_handlers(desk.settings.modules)

        def carry_out(connection: Connection, who: str) -> ActionAnswer:
            try:
                done = action.run(connection, target, given, who)
            except NotThereError as error:
                raise HttpError(404, str(error)) from None
            return ActionAnswer(done.said, done.changed)

        return await act(request, desk, carry_out, back=action.next_page(target, given))

    handler.__doc__ = action.run.__doc__
    return requires(action.role, answers=ActionAnswer, takes=takes)(handler)


def _target(request: Request, action: Action) -> Any:
    if not action.on:
        return None
    if action.is_of_an_id:
        return row_id(request.path_params[action.on])
    return cause(request) if action.on == "fingerprint" else named(request, action.on)


# A name may hold slashes: the last segment of an action's address is the action.
ROUTES = tuple(
    (start + action.path, handler, "POST")
    for action in ACTIONS
    if action.path
    for handler in [_route(action)]
    for start in ("", "/api")
)
