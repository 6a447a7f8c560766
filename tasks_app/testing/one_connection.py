"""What parts of a worker need, on the one connection of a test's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.lanes import AsyncLane
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.handlers.middleware import Middleware

T = TypeVar("T")


class OneConnection(Database):
    """What would be a transaction of a worker's own is a savepoint here."""

    def __init__(self, connection: Connection) -> None:
        super().__init__("postgresql+psycopg://")
        self._only = connection

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a savepoint; it is released at the end of the block."""
        with self._only.begin_nested():
            yield self._only

    single = begin


class NoGuard(ProcessGuard):
    """The process is the test's: its timers and descriptors are left alone."""

    def __init__(self) -> None:
        self.unfit = False

    def __exit__(self, *_: object) -> None:
        """Look at nothing."""


class InlineLane(AsyncLane):
    """Calls coroutine functions; what blocks is done in place, on the connection of all."""

    def aside(self, work: Callable[[], T]) -> T:
        """Do it here."""
        return work()


class InlineInvocation(Invocation):
    """Calls handlers in the thread of the test."""

    def __init__(
        self, settings: Settings, database: Database, middleware: Sequence[Middleware]
    ) -> None:
        guard = NoGuard()
        super().__init__(settings, database, guard, middleware)
        self._async = InlineLane(database, guard, 1)
