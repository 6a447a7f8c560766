"""The transaction of the test, as a handler sees it through its context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from tasks_app.runtime.db.transaction import carry_out
from tasks_app.runtime.handler_db.late_writes import write_of
from tasks_app.testing.sessions import outer_session

NO_OUTCOME = (
    "ctx.write sends with the outcome, and this context of an async handler has none. "
    "Run the task: drain(), or adrain() in an async test."
)
NO_SESSION = "This context has no session. Give it the one of your test, as session=…"


class GivenAccess:
    """The transaction of the test, as a handler sees it."""

    def __init__(self, given: Any, *, is_async: bool) -> None:
        self.is_async = is_async
        self._outer = None if given is None else outer_session(given)

    @property
    def session(self) -> Any:
        """The session of the test.

        Raises:
            RuntimeError: the test gave none.
        """
        if self._outer is None:
            raise RuntimeError(NO_SESSION)
        return self._outer

    @property
    def connection(self) -> Connection:
        """The same transaction without the ORM."""
        if self.is_async:
            raise TypeError("In async handlers use: await ctx.session.connection()")
        connection: Connection = self.session.connection()
        return connection

    def write(self, query: str, parameters: Any) -> None:
        """Send it at once: there is no outcome with which it could travel.

        Raises:
            RuntimeError: in an async handler, where it would have to be awaited.
        """
        write = write_of(query, parameters)
        if self.is_async:
            raise RuntimeError(NO_OUTCOME)
        carry_out(self.connection, [write])

    @property
    def active(self) -> bool:
        """Always true: the test ends it."""
        return True

    def keep(self, save: Callable[[Connection], None]) -> Any:  # noqa: ARG002  an Access's
        """Write what the session holds; in async handlers something to await."""
        return None if self._outer is None else self.session.flush()

    def check_awaited(self) -> None:
        """Pass: a session of the test notes nothing."""


def is_async(given: Any) -> bool:
    """Whether it belongs to an async handler."""
    names = {kind.__name__ for kind in type(given).__mro__}
    return not names.isdisjoint({"AsyncSession", "AsyncConnection", "async_scoped_session"})
