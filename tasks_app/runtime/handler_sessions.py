"""Sessions of handlers: their commit belongs to the executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from tasks_app.runtime.borrowed import COMMITS_LATER, commit_permitted
from tasks_app.runtime.liveness import look_again


class HandlerSession(Session):
    """A session whose commit belongs to the executor."""

    def commit(self) -> None:
        """Refuse: effect and outcome are one commit."""
        raise RuntimeError(COMMITS_LATER)

    def commit_with_outcome(self) -> None:
        """Commit, for the executor."""
        with commit_permitted(self.connection()):
            super().commit()

    def hear_of_commit(self) -> None:
        """End, where somebody else committed the connection: listeners are told."""
        super().commit()

    def close(self) -> None:
        """Leave it open: what is written in ``with ctx.session`` commits with the outcome, too."""

    def end(self) -> None:
        """Close, for the executor."""
        super().close()


class AsyncHandlerSession(AsyncSession):
    """The same for async handlers."""

    async def commit(self) -> None:
        """Refuse: effect and outcome are one commit."""
        raise RuntimeError(COMMITS_LATER)

    async def commit_with_outcome(self) -> None:
        """Commit, for the executor."""
        with commit_permitted(self.sync_session.connection()):
            await super().commit()

    async def close(self) -> None:
        """Leave it open, as above."""

    async def end(self) -> None:
        """Close, for the executor."""
        await super().close()


class RunSession(HandlerSession):
    """Bound to the engine as any other, yet it works on the one connection that it is given.

    So whoever asks for its engine has it, and its thread needs no second connection.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(
            connection.engine, join_transaction_mode="control_fully", close_resets_only=False
        )
        self._works_on = connection
        self._options: Mapping[str, Any] | None = None

    def connection(
        self,
        bind_arguments: dict[str, Any] | None = None,
        execution_options: Mapping[str, Any] | None = None,
    ) -> Connection:
        """Return its connection; options of a transaction are heeded where this begins it."""
        if execution_options and not self.in_transaction():
            self._options, execution_options = execution_options, None
        return super().connection(bind_arguments, execution_options)

    def join(self) -> None:
        """Let a new transaction find the connection before it asks the engine for one."""
        look_again(self._works_on)
        options, self._options = self._options, None
        super().connection({"bind": self._works_on}, options)


@event.listens_for(RunSession, "after_transaction_create")
def _join(session: RunSession, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.join()
