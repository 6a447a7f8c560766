"""The transaction of a run, as a savepoint in the transaction of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session
from sqlalchemy.util import greenlet_spawn

from tasks_app.runtime.db.transaction import NESTED, carry_out
from tasks_app.runtime.handler_db.handler_statements import COMMITS_LATER
from tasks_app.runtime.handler_db.late_writes import Write, write_of
from tasks_app.testing.sessions import JOINS, async_session_on


class SavepointSession(Session):
    """The session of a handler; its commit belongs to the drain."""

    restart: Callable[[], None]

    def commit(self) -> None:
        """Refuse: effect and outcome are one commit."""
        raise RuntimeError(COMMITS_LATER)

    def rollback(self) -> None:
        """Roll back what was done by any way, also if the session itself did nothing."""
        super().rollback()
        self.restart()

    def close(self) -> None:
        """Stay open, as a worker's."""

    def release(self) -> None:
        """Keep what was written, as far as the test keeps it."""
        super().commit()

    def end(self) -> None:
        """Close it."""
        super().close()


class SavepointTransaction:
    """For a plain handler."""

    is_async = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._savepoint = connection.begin_nested()
        self._sync: SavepointSession | None = None
        self._writes: list[Write] = []

    @property
    def session(self) -> Any:
        """A session of its own on the connection of the test."""
        return self._side()

    def _side(self) -> SavepointSession:
        if self._sync is None:
            self._sync = SavepointSession(self._connection, join_transaction_mode=JOINS)
            self._sync.restart = self._restart
        return self._sync

    @property
    def connection(self) -> Connection:
        """The connection of the test."""
        return self._connection

    def write(self, query: str, parameters: Any) -> None:
        """Send it when the run ends, or commits on the way."""
        self._writes.append(write_of(query, parameters))

    @property
    def active(self) -> bool:
        """Always true: it is a part of the test's."""
        return True

    def keep(self, save: Callable[[Connection], None]) -> Any:
        """Keep what was done so far, whatever becomes of the run.

        Raises:
            RuntimeError: a savepoint of the handler is open.
        """
        self.release(save)
        self._savepoint = self._connection.begin_nested()

    def release(self, save: Callable[[Connection], object]) -> None:
        """Flush, call ``save``, and end the savepoint.

        Raises:
            RuntimeError: a savepoint of the handler is open, or it has ended ours.
        """
        if self._sync is not None:
            if self._sync.in_nested_transaction():
                raise RuntimeError(NESTED)
            self._sync.release()
        if self._connection.get_nested_transaction() is not self._savepoint:
            raise RuntimeError(NESTED)
        carry_out(self._connection, self._writes)
        save(self._connection)
        self._savepoint.commit()

    def abandon(self) -> None:
        """Undo what was not kept."""
        self._writes.clear()
        if self._sync is not None:
            self._sync.end()
        if self._savepoint.is_active:
            self._savepoint.rollback()

    def _restart(self) -> None:
        if self._savepoint.is_active:
            self._savepoint.rollback()
            self._savepoint = self._connection.begin_nested()


class AsyncSavepointTransaction(SavepointTransaction):
    """For an async handler."""

    is_async = True

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._outer: Any = None

    @property
    def session(self) -> Any:
        """An AsyncSession on the connection of the test, which may block."""
        if self._outer is None:
            self._outer = async_session_on(self._side())
        return self._outer

    @property
    def connection(self) -> Connection:
        """Refuse: it has to be awaited.

        Raises:
            TypeError: always.
        """
        raise TypeError("In async handlers use: await ctx.session.connection()")

    def check_awaited(self) -> None:
        """Pass: this session notes nothing; Python itself warns of what was never awaited."""

    async def keep(self, save: Callable[[Connection], None]) -> None:
        """Keep what was done so far, whatever becomes of the run."""
        await greenlet_spawn(super().keep, save)
