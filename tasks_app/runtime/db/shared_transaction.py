"""The transaction that the runs of a batch share.

Each run gets the same connection, and a session of its own. A run that rolls back, or leaves
something in the session to the runs after it, spoils the transaction for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, RootTransaction

from tasks_app.domain.coordination.groups import Called
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.domain.tasks.run import Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.session_state import is_anything_left
from tasks_app.pool.runs.settle import settle_group
from tasks_app.runtime.db.transaction import NO_COMMIT, SpoiledError, carry_out, give_back
from tasks_app.runtime.handler_db.end_of_run import Permit
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.handler_sessions import HandlerSession
from tasks_app.runtime.handler_db.late_writes import write_of
from tasks_app.runtime.handler_db.lending import driver_of
from tasks_app.runtime.hints.hints import HINTS

log = quiet_logger(__name__)


class RunShare:
    """What one run of a batch has of it."""

    def __init__(self, whole: SharedTransaction) -> None:
        self._whole = whole
        self._session: HandlerSession | None = None

    @property
    def session(self) -> HandlerSession:
        """A session of this run's own, on the common connection."""
        if self._session is None:
            self._session = self._whole.session()
        return self._session

    @property
    def connection(self) -> Connection:
        return self._whole.connection

    def write(self, query: str, parameters: Any) -> None:
        """Send it at once: the shared transaction has no end of this run's own."""
        carry_out(self.connection, [write_of(query, parameters)])

    @property
    def active(self) -> bool:
        """Always false: the shared transaction ends with all runs, not with this one."""
        return False

    def keep(self, save: Callable[[Connection], None]) -> Any:  # noqa: ARG002  an Access's
        """Refuse: others' effects would be committed without their outcomes.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(NO_COMMIT)

    def end(self) -> None:
        """Write what the session still holds.

        Raises:
            SpoiledError: the transaction cannot serve the other runs any more.
        """
        if self._session is not None:
            self._session.flush()
        self._whole.check()


class SharedTransaction:
    """Begun when it is first touched."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._root: RootTransaction | None = None
        self._sessions: list[HandlerSession] = []
        self._called: list[Called] = []
        self._driver: HandlerConnection | None = None

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            self._root = self._connection.begin()
            self._driver = driver_of(self._connection)
        return self._connection

    @property
    def ended(self) -> bool:
        return self._driver is not None and self._driver.ended

    def share(self) -> RunShare:
        return RunShare(self)

    def session(self) -> HandlerSession:
        """Return a session for one run; its rollback rolls back all runs."""
        session = HandlerSession(
            self.connection, join_transaction_mode="rollback_only", close_resets_only=False
        )
        self._sessions.append(session)
        return session

    def check(self) -> None:
        """Check the transaction after a run, and reset what the run has set.

        Raises:
            Exception: it rolled back, or ended the transaction.
        """
        connection, root, driver = self._connection, self._root, self._driver
        if connection is None or root is None or driver is None:
            return
        driver.check()
        if driver.rolled_back or not root.is_active or connection.get_transaction() is not root:
            raise SpoiledError
        driver.send_reset()

    def settle(self, settlements: Sequence[Settlement]) -> dict[int, State]:
        """Write all outcomes, uncommitted; return those that were written without a wait.

        Raises:
            SpoiledError: something stays in the session that other runs would see.
        """
        if is_anything_left(self.connection):
            raise SpoiledError
        return settle_group(self.connection, settlements, called=self._called)

    def commit(self) -> None:
        """Commit all effects and outcomes."""
        driver_of(self.connection).permit = Permit()
        self.connection.commit()
        HINTS.called(self._called)

    def close(self) -> None:
        """End the sessions as committed, for their listeners; never raises."""
        for session in self._sessions:
            try:
                session.hear_of_commit()
            except BaseException as error:
                log.warning("a listener of a session failed after its commit: %s", brief(error))
        self.abandon()

    def abandon(self) -> None:
        """Give the connection back; an open transaction rolls back. Never raises."""
        for session in self._sessions:
            give_back(session.end, session.invalidate)
        if self._connection is not None:
            give_back(self._connection.close, self._connection.invalidate)
