"""The transaction of a plain handler, on its thread's connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.group import Called
from tasks_app.domain.states import State
from tasks_app.domain.task import Settlement
from tasks_app.pool.succeed import is_fence_lost, last_word, succeed
from tasks_app.runtime.borrowed import commit_permitted, left_a_setting
from tasks_app.runtime.chained import Chained
from tasks_app.runtime.handler_sessions import HandlerSession, RunSession
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.kept import KeptConnections, may_be_kept
from tasks_app.runtime.reactions import is_unanswered
from tasks_app.runtime.transaction import CLOSED, NESTED, as_sqlalchemy_raises, give_back


class PlainTransaction:
    """Of a plain handler."""

    def __init__(self, kept: KeptConnections, *, more: bool = False) -> None:
        """``more``: another run of this thread's follows at once."""
        self._kept = kept
        self._more = more
        self._connection: Connection | None = None
        self._session: HandlerSession | None = None
        self._left: Chained | None = None
        """Where its COMMIT was sent, whose answer was not waited for."""

    @property
    def session(self) -> HandlerSession:
        """A session on the same connection; once closed it stays closed."""
        if self._session is None:
            if self._connection is None:
                self._connection = self._kept.take()
            self._session = RunSession(self._connection)
        return self._session

    @property
    def connection(self) -> Connection:
        """This thread's connection, as its session has it if there is one."""
        if self._session is not None:
            return self._session.connection()
        if self._connection is None:
            self._connection = self._kept.take()
        return self._connection

    @property
    def active(self) -> bool:
        """Whether anything was done in it."""
        if self._session is not None and self._session.in_transaction():
            return True
        connection = self._connection
        return connection is not None and (connection.closed or connection.in_transaction())

    def keep(self, save: Callable[[Connection], None]) -> None:
        """Commit what was done so far, ``save`` last.

        Raises:
            RuntimeError: a savepoint is open, or the connection was closed.
        """
        session = self._session
        if session is not None:
            session.flush()
        connection = self.connection
        if connection.closed:
            raise RuntimeError(CLOSED)
        if connection.in_nested_transaction():
            raise RuntimeError(NESTED)
        save(connection)
        self._commit()

    def send(self, settlement: Settlement) -> bool:
        """Send both in one round trip; not of a session, whose listeners hear of the commit.

        The connection is the thread's next run's from here on.
        """
        connection = self._connection
        if self._session is not None or connection is None or not may_be_kept(connection):
            return False
        driver = self._ends_with(connection, settlement, leave=True)
        if driver is None:
            return False
        self._commit()
        self._left, self._connection = driver, None
        self._kept.keep(connection)
        return True

    def conclude(self, settlement: Settlement) -> State | None:
        """Flush what the handler left, settle and commit on the same connection.

        A session commits by itself, so that its listeners hear of it.
        """
        called: list[Called] = []
        try:
            if self._left is not None:
                self._hear(self._left)
            elif self._settle(settlement, called):
                self._commit()
            else:
                return None
        except DBAPIError as error:
            if is_fence_lost(error.orig):
                return None
            raise
        HINTS.called(called)
        return State.SUCCEEDED

    def _hear(self, driver: Chained) -> None:
        try:
            driver.hear()
        except psycopg.Error as error:
            known = as_sqlalchemy_raises(error)
            if is_unanswered(known):
                self._kept.rest()  # it may lie there, lost
            raise known from error

    def _settle(self, settlement: Settlement, called: list[Called]) -> bool:
        if self._session is not None:
            self._session.flush()
        connection = self.connection
        if connection.closed:
            raise RuntimeError(CLOSED)
        ends = not left_a_setting(connection) and self._ends_with(connection, settlement)
        return bool(ends) or self._succeed(settlement, called)

    def _ends_with(
        self, connection: Connection, settlement: Settlement, *, leave: bool = False
    ) -> Chained | None:
        """Let the COMMIT take the outcome along; None: it cannot.

        Not that of a member of a group, which is counted by a statement that has an answer.
        """
        driver, task = _driver_of(connection), settlement.task
        if task is None or task.in_group or not driver.can_end_with():
            return None
        driver.end_with(last_word(settlement), chain=self._more, leave=leave)
        return driver

    def _succeed(self, settlement: Settlement, called: list[Called]) -> bool:
        try:
            return succeed(_driver_of(self.connection), settlement, called)
        except psycopg.Error as error:
            known = as_sqlalchemy_raises(error)
            if is_unanswered(known):
                self.connection.invalidate(known)
            raise known from error

    def _commit(self) -> None:
        if self._session is not None:
            self._session.commit_with_outcome()
        else:
            with commit_permitted(self.connection):
                self.connection.commit()

    def abandon(self) -> None:
        """Close; an open transaction rolls back."""
        session, connection = self._session, self._connection
        self._session = self._connection = None
        if session is not None:
            give_back(session.end, session.invalidate)
        if connection is not None:
            give_back(lambda: self._kept.put_back(connection), connection.invalidate)


def _driver_of(connection: Connection) -> Chained:
    driver: Any = connection.connection.driver_connection
    return cast("Chained", driver)
