"""What admins say of limits, breakers and locks; the pages of queues show them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.routes.acting import ActionAnswer, act
from tasks_app.dashboard.routes.asked import fields
from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.routes.queues import address_of
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import HttpError, requires
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode
from tasks_app.runtime.api import limits as verbs
from tasks_app.runtime.flow_control.breakers import override_breaker


@dataclass(frozen=True, slots=True)
class Limited:
    """A limit: of what, and how much."""

    kind: str
    """``queue``, ``name`` or ``key``."""
    target: str
    most: int | None = None
    """How many run at a time."""
    rate: str | None = None
    """How many start in a period: ``100/1m``."""
    burst: int | None = None
    """How many start at once after a quiet time."""
    page: str = ""
    """The queue whose page is shown next."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which limit."""

    kind: str
    target: str
    page: str = ""


@dataclass(frozen=True, slots=True)
class Override:
    """Who decides on a breaker: an operator (open, closed), or its outcomes (auto)."""

    dependency: str
    mode: BreakerMode
    page: str = ""


@dataclass(frozen=True, slots=True)
class Freed:
    """Which lock."""

    resource: str
    holder: UUID | None = None
    """The ``token`` of who holds it; without it, all who do."""
    page: str = ""


@requires(Role.ADMIN, answers=ActionAnswer, takes=Limited)
async def set_limit(request: Request, desk: Desk) -> Response:
    """Limit a queue, a name or limit keys; replaces what was set before."""
    given = await fields(request, Limited)

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        verbs.set_limit(
            connection,
            given.kind,
            given.target,
            most=given.most,
            rate=given.rate,
            burst=given.burst,
            by=who,
        )
        return ActionAnswer(
            f"The limit of {given.kind} {given.target} is set, from the next claim on."
        )

    return await act(request, desk, carry_out, back=address_of(given.page))


@requires(Role.ADMIN, answers=ActionAnswer, takes=Target)
async def drop_limit(request: Request, desk: Desk) -> Response:
    """Remove a limit; the tasks that wait for it go on."""
    given = await fields(request, Target)

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        if not verbs.drop_limit(connection, given.kind, given.target, by=who):
            return ActionAnswer("Nothing was changed: there is no such limit.", changed=False)
        return ActionAnswer(f"The limit of {given.kind} {given.target} is dropped.")

    return await act(request, desk, carry_out, back=address_of(given.page))


@requires(Role.ADMIN, answers=ActionAnswer, takes=Override)
async def override(request: Request, desk: Desk) -> Response:
    """Open or close a breaker whatever the outcomes are (open, closed), or leave it to them."""
    given = await fields(request, Override)
    words = {
        BreakerMode.OPEN: "is open until somebody says otherwise",
        BreakerMode.CLOSED: "is closed, whatever its outcomes are",
        BreakerMode.AUTO: "is left to its outcomes",
    }

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        if not override_breaker(connection, given.dependency, given.mode, by=who):
            raise HttpError(404, f"There is no breaker {given.dependency}.")
        return ActionAnswer(f"Breaker {given.dependency} {words[given.mode]}.")

    return await act(request, desk, carry_out, back=address_of(given.page))


@requires(Role.ADMIN, answers=ActionAnswer, takes=Freed)
async def free_lock(request: Request, desk: Desk) -> Response:
    """Take a lock from its holder, whose guarded writes are refused from then on."""
    given = await fields(request, Freed)

    def carry_out(connection: Connection, who: str) -> ActionAnswer:
        whose = verbs.free_lock(connection, given.resource, given.holder, by=who)
        if not whose:
            return ActionAnswer("Nothing was changed: nobody holds it any more.", changed=False)
        return ActionAnswer(f"{given.resource} was taken from {', '.join(whose)}.")

    return await act(request, desk, carry_out, back=address_of(given.page))


_ACTIONS = (
    ("/limits/set", set_limit, "POST"),
    ("/limits/drop", drop_limit, "POST"),
    ("/breakers/override", override, "POST"),
    ("/locks/free", free_lock, "POST"),
)
ROUTES = (
    *_ACTIONS,
    *((f"/api{path}", handler, method) for path, handler, method in _ACTIONS),
)
