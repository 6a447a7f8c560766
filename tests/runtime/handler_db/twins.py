"""One body for a plain handler and for its twin in the event loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class _InTheLoop:
    """The context of an async handler, with the plain side of its session."""

    def __init__(self, ctx: Any, session: Any) -> None:
        self._ctx = ctx
        self.session = session

    def __getattr__(self, name: str) -> Any:
        return self.session.connection() if name == "connection" else getattr(self._ctx, name)


async def in_the_loop(function: Callable[..., Any], ctx: Any, *payload: Any) -> Any:
    """Call a plain handler in the session of an async one."""
    return await ctx.session.run_sync(lambda session: function(_InTheLoop(ctx, session), *payload))


def twin(function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """Return the function, or an async handler that does the same in its session."""
    if not is_async:
        return function

    async def alone(ctx: Any) -> Any:
        return await in_the_loop(function, ctx)

    async def with_payload(ctx: Any, payload: dict[str, Any]) -> Any:
        return await in_the_loop(function, ctx, payload)

    return with_payload if len(inspect.signature(function).parameters) == 2 else alone
