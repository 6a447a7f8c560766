"""The transaction of a plain handler, on a connection of its run's own."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.transaction import (
    LOST,
    NESTED,
    as_sqlalchemy_raises,
    carry_out,
    give_back,
    of_commit,
    uncommitted,
)
from tasks_app.runtime.handler_db.end_of_run import Permit
from tasks_app.runtime.handler_db.end_pipeline import OutcomeRefusedError
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.handler_driver import CLOSED
from tasks_app.runtime.handler_db.handler_sessions import HandlerSession, RunSession
from tasks_app.runtime.handler_db.late_writes import Write, write_of
from tasks_app.runtime.handler_db.lending import driver_of
from tasks_app.runtime.hints.hints import HINTS


class PlainTransaction:
    """For a plain handler."""

    def __init__(self, database: Database, fence: Fence) -> None:
        self._database = database
        self._fence = fence
        self._taking = Lock()
        self._connection: Connection | None = None
        self._session: HandlerSession | None = None
        self._driver: HandlerConnection | None = None
        self._writes: list[Write] = []

    @property
    def session(self) -> HandlerSession:
        """A session on the same connection; once closed it stays closed."""
        if self._session is None:
            self._session = RunSession(self._taken())
        return self._session

    @property
    def connection(self) -> Connection:
        """The run's connection, as its session has it if there is one."""
        return self._taken() if self._session is None else self._session.connection()

    def _taken(self) -> Connection:
        with self._taking:  # threads of the handler may ask at once
            if self._connection is None:
                connection = self._database.handler_engine.connect()
                self._driver = driver_of(connection)
                self._driver.fence = self._fence
                self._connection = connection
            return self._connection

    def write(self, query: str, parameters: Any) -> None:
        write = write_of(query, parameters)
        self._writes.append(write)

    @property
    def late_writes(self) -> tuple[Write, ...]:
        return tuple(self._writes) if self._connection is None else ()

    @property
    def active(self) -> bool:
        if self._writes:
            return True
        if self._session is not None and self._session.in_transaction():
            return True
        connection = self._connection
        if connection is None:
            return False
        if connection.closed or connection.invalidated:
            return True
        driver = driver_of(connection)
        return driver is None or driver.is_at_work  # none: it was detached

    @property
    def ended(self) -> bool:
        return any(driver.has_ended() for driver in self._drivers)

    @property
    def untried(self) -> bool:
        return bool(self._drivers) and not any(driver.answered for driver in self._drivers)

    @property
    def _drivers(self) -> set[HandlerConnection]:
        """The first one; if that was lost, also the one in its place."""
        connection, first = self._connection, set() if self._driver is None else {self._driver}
        if connection is None or connection.closed or connection.invalidated:
            return first
        return first | ({driver_of(connection)} - {None})

    def keep(self, save: Callable[[Connection], None]) -> None:
        """Commit what was done so far, ``save`` last.

        Raises:
            RuntimeError: a savepoint is open, or the connection was closed.
        """
        connection = self._flushed()
        if connection.in_nested_transaction():
            raise RuntimeError(NESTED)
        carry_out(connection, self._writes)
        save(connection)
        self._commit(connection, Permit())

    def conclude(self, settlement: Settlement) -> State | None:
        """Flush what the handler left, settle and commit on the same connection.

        If there is a session, it is the one that commits, so that its listeners are called.
        """
        connection = self._flushed()
        permit = Permit(settlement, writes=self._writes)
        try:
            self._commit(connection, permit)
        except OutcomeRefusedError:
            return None
        HINTS.called(permit.called)
        return State.SUCCEEDED

    def _flushed(self) -> Connection:
        if self._connection is not None and self._connection.invalidated:
            raise as_sqlalchemy_raises(psycopg.OperationalError(LOST))  # the handler caught it
        if self._session is not None:
            self._session.flush()
        connection = self.connection
        if connection.closed:
            raise RuntimeError(CLOSED)
        return connection

    def _commit(self, connection: Connection, permit: Permit) -> None:
        driver = driver_of(connection)
        if driver is None:  # it was detached
            raise RuntimeError(CLOSED)
        driver.check()
        if permit.settlement is not None:
            driver.seal()
        driver.permit = permit
        try:
            if self._session is not None:
                self._session.commit_with_outcome()
            elif permit.settlement is None:
                connection.commit()
            if driver.permit is not None:
                driver.commit()  # SQLAlchemy took it for ended, or need not know: it closes next
        except psycopg.Error as error:
            raise uncommitted(connection, error) from error
        except SQLAlchemyError as error:
            if driver.permit is None:
                of_commit(error)
            raise

    def abandon(self) -> None:
        self._writes.clear()
        for driver in self._drivers:
            give_back(driver.break_off, driver.pgconn.finish)
        session, connection = self._session, self._connection
        self._session = self._connection = None
        if session is not None:
            give_back(session.end, session.invalidate)
        if connection is not None:
            give_back(connection.close, connection.invalidate)
