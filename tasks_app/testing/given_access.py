"""The transaction of the test, as a handler sees it through its context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from tasks_app.runtime.db.connections import unwrapped
from tasks_app.runtime.db.transaction import carry_out
from tasks_app.runtime.handler_db.handler_statements import COMMITS_LATER
from tasks_app.runtime.handler_db.late_writes import write_of
from tasks_app.testing.sessions import async_session_on, outer_session

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
        self._mine = self._outer is not unwrapped(given)

    @property
    def whole(self) -> Session | None:
        """The session, or the synchronous side of it; None: the test gave none."""
        outer: Any = self._outer
        whole: Session | None = getattr(outer, "sync_session", outer)
        return whole

    @property
    def session(self) -> Any:
        """The session of the test.

        Raises:
            RuntimeError: the test gave none.
        """
        if self._outer is None:
            raise RuntimeError(NO_SESSION)
        if self.is_async and isinstance(self._outer, Session):
            self._outer = async_session_on(self._outer)
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
        """Refuse: there is no task whose row could be written.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("No task is behind this context. Use drain() to run a real one.")

    def flush(self) -> Any:
        """Write what the session holds; in async handlers something to await."""
        return None if self._outer is None else self.session.flush()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what is written in the block if it raises."""
        whole = self.whole
        if whole is None:
            yield
            return
        with whole.begin_nested():
            yield
            whole.flush()
        if self._mine:
            whole.commit()  # of the savepoint in which it joined the connection


def is_async(given: Any) -> bool:
    """Whether it belongs to an async handler."""
    names = {kind.__name__ for kind in type(given).__mro__}
    return not names.isdisjoint({"AsyncSession", "AsyncConnection", "async_scoped_session"})


@contextmanager
def uncommitted(session: Session | None) -> Iterator[None]:
    """Refuse a commit of the handler, as a worker does: it belongs to the outcome."""
    if session is None:
        yield
        return

    def refuse() -> None:
        raise RuntimeError(COMMITS_LATER)

    session.__dict__["commit"] = refuse
    try:
        yield
    finally:
        del session.__dict__["commit"]
