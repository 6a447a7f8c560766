"""One decorator per route says who may use it; here it is held to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from tasks_app.actions.action import Role
from tasks_app.dashboard.security import Visitor
from tasks_app.dashboard.security import scraper
from tasks_app.dashboard.security.same_site import SAFE, refusal, remember, token_of

Handler = Callable[..., Awaitable[Response]]
Identify = Callable[[Request], Awaitable[Visitor]]


class HttpError(Exception):
    """The request is not carried out; the message is for who sent it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Declared(Protocol):
    """A handler that says who may use it."""

    role: Role
    answers: type | None
    query: tuple[str, ...]
    takes: type | None
    scraped: bool


def requires(
    role: Role,
    *,
    answers: type | None = None,
    query: tuple[str, ...] = (),
    takes: type | None = None,
    scraped: bool = False,
) -> Callable[[Handler], Handler]:
    """Say the least role that a route asks for; ``scraped``: or the password of the metrics.

    The rest describes the API: the dataclass that it answers with, the parameters of its query,
    and the dataclass of its body.
    """

    def mark(handler: Handler) -> Handler:
        handler.role, handler.answers = role, answers  # type: ignore[attr-defined]
        handler.query, handler.takes = query, takes  # type: ignore[attr-defined]
        handler.scraped = scraped  # type: ignore[attr-defined]
        return handler

    return mark


def guarded(handler: Handler, identify: Identify, desk: Any) -> Handler:
    """Return an endpoint that asks first.

    Raises:
        TypeError: the handler does not say who may use it.
    """
    role = getattr(handler, "role", None)
    if not isinstance(role, Role):
        raise TypeError(f"{handler.__name__} has no role. Put @requires(Role.…) above it.")

    scraped = getattr(handler, "scraped", False)

    async def endpoint(request: Request) -> Response:
        known = scraper(request, desk.settings) if scraped else None
        identity = known or await identify(request)
        if identity.ask:
            raise HttpError(401, identity.why)
        if identity.role is None or identity.role < role:
            why = identity.why or f"This needs the role {role.name.lower()}. Ask an admin for it."
            raise HttpError(403, why)
        if request.method not in SAFE and (why := await refusal(request)):
            raise HttpError(403, why)
        request.state.identity, request.state.token = identity, token_of(request)
        response = await handler(request, desk)
        remember(request, response, request.state.token)
        return response

    endpoint.role = role  # type: ignore[attr-defined]
    return endpoint
