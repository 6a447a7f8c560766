"""Carry out a verb in a transaction, and say what came of it: to a page, or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tasks_app.dashboard.html import tell
from tasks_app.dashboard.rendering.json import answer
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security.guard import HttpError
from tasks_app.dashboard.security.same_site import is_api
from tasks_app.domain.errors import TasksError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ActionAnswer:
    """What came of an action."""

    said: str
    """A sentence for who asked."""
    changed: bool = True


def who(request: Request) -> str:
    """Return who acts, for the audit."""
    door = "api" if is_api(request) else "dashboard"
    return f"{request.state.identity.who} ({door})".strip()


async def carried_out(verb: Callable[[], Answer]) -> Answer:
    """Call a verb of the runtime, away from the event loop.

    Raises:
        HttpError: the verb refused; a 409 in its words.
    """
    try:
        return await run_in_threadpool(verb)
    except TasksError as error:
        raise HttpError(409, str(error)) from error


async def act(
    request: Request, desk: Desk, carry_out: Callable[[Connection, str], ActionAnswer], *, back: str
) -> Response:
    """Call ``carry_out(connection, who)`` in a transaction; then show the page ``back``.

    Raises:
        HttpError: the runtime refused, and all was rolled back.
    """

    def in_transaction() -> ActionAnswer:
        with desk.database.begin() as connection:
            return carry_out(connection, who(request))

    done = await carried_out(in_transaction)
    desk.reader.forget()
    return answer(request, done) if is_api(request) else go_to(request, back, done)


def go_to(request: Request, path: str, done: ActionAnswer | None = None) -> Response:
    """Lead to a page of ours, which says what was done."""
    response = RedirectResponse(f"{request.scope.get('root_path', '')}{path}", 303)
    if done:
        tell(request, response, done.said, changed=done.changed)
    return response
