"""Around the whole application: headers of every answer, and bodies that are too large."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1_000_000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)
OUTER = ("router", "app", "endpoint", "path_params", "route", "app_root_path")
"""What an application around ours leaves in the scope: its routes, which ours are not."""


class TooLargeError(Exception):
    """A body has more than MOST_BYTES."""


class RequestEnvelope:
    """What each request passes, wherever the application is mounted."""

    def __init__(self, app: ASGIApp, close: Callable[[], None]) -> None:
        self._app = app
        self.close = close
        """Gives the connections back; a process that ends need not call it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MOST_BYTES:
                raise TooLargeError
            return message

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                more = [pair for pair in _HEADERS if pair[0] not in names]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        inner = {name: value for name, value in scope.items() if name not in OUTER}
        await self._app(inner, bounded, with_headers)
