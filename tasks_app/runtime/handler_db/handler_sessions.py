"""Sessions of handlers: their commit belongs to the executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from tasks_app.runtime.handler_db.connection_liveness import look_again
from tasks_app.runtime.handler_db.handler_statements import COMMITS_LATER
from tasks_app.runtime.handler_db.lending import driver_of

FENCE, DRIVERS = "tasks_app fence", "tasks_app drivers"
"""Keys of an async session's ``info``: its run's fence, and the connections that it had."""


class HandlerSession(Session):
    """A session whose commit belongs to the executor."""

    def commit(self) -> None:
        """Refuse: effect and outcome are one commit."""
        raise RuntimeError(COMMITS_LATER)

    def commit_with_outcome(self) -> None:
        super().commit()

    def rollback(self) -> None:
        """Roll back what was done by any way, also if the session itself did nothing."""
        super().rollback()
        connection = self.works_on
        if not (connection.closed or connection.invalidated):
            connection.rollback()
            driver_of(connection).rollback()

    @property
    def works_on(self) -> Connection:
        """The connection of its run."""
        assert isinstance(self.bind, Connection)  # noqa: S101  as it is made
        return self.bind

    def hear_of_commit(self) -> None:
        """End after a commit of the connection itself, so that listeners hear of it."""
        super().commit()

    def close(self) -> None:
        """Stay open: what is written in ``with ctx.session`` commits with the outcome, too."""

    def end(self) -> None:
        super().close()


class SyncSideSession(Session):
    """The synchronous session behind an async handler's."""


class AsyncHandlerSession(AsyncSession):
    """The same for async handlers."""

    sync_session_class = SyncSideSession

    async def commit(self) -> None:
        raise RuntimeError(COMMITS_LATER)

    async def commit_with_outcome(self) -> None:
        await super().commit()

    async def close(self) -> None:
        """Stay open, as HandlerSession."""

    async def end(self) -> None:
        await super().close()


class RunSession(HandlerSession):
    """Bound to the engine as any other session, but works on the one connection that it is given.

    So ``get_bind()`` returns the engine, and the thread needs no second connection.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(
            connection.engine, join_transaction_mode="control_fully", close_resets_only=False
        )
        self._works_on = connection
        self._options: Mapping[str, Any] | None = None

    @property
    def works_on(self) -> Connection:
        return self._works_on

    def connection(
        self,
        bind_arguments: dict[str, Any] | None = None,
        execution_options: Mapping[str, Any] | None = None,
    ) -> Connection:
        """Return its connection, with options of a transaction that begins here."""
        if execution_options and not self.in_transaction():
            self._options, execution_options = execution_options, None
        return super().connection(bind_arguments, execution_options)

    def join(self) -> None:
        """Give a new transaction the connection before it asks the engine for one."""
        look_again(self._works_on)
        options, self._options = self._options, None
        super().connection({"bind": self._works_on}, options)


@event.listens_for(RunSession, "after_transaction_create")
def _join(session: RunSession, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.join()


@event.listens_for(SyncSideSession, "after_begin")
def _tell_whose(session: SyncSideSession, _: SessionTransaction, connection: Connection) -> None:
    driver = driver_of(connection)
    driver.fence = session.info[FENCE]
    session.info.setdefault(DRIVERS, set()).add(driver)
