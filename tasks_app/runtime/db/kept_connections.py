"""What a thread keeps of its connections from one run to the next that follows at once."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg
from sqlalchemy import Connection, Engine

from tasks_app.runtime.db.transaction import give_back, uncommitted
from tasks_app.runtime.handler_db.end_of_run import Permit
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.lending import driver_of, taken


class KeptConnections:
    """Of all threads of a child."""

    def __init__(self) -> None:
        self._begun: dict[int, HandlerConnection] = {}
        self._unused: dict[int, Connection] = {}

    def begun(self, driver: HandlerConnection) -> None:
        """Keep one whose transaction was begun ahead; it is back in its pool."""
        self._begun[threading.get_ident()] = driver

    def rest(self) -> None:
        """End what was kept for this thread: no run follows."""
        self.end_unused()
        begun = self._begun.pop(threading.get_ident(), None)
        if begun is not None:
            with suppress(psycopg.Error):  # it is gone anyway
                begun.rest()

    def commit(self, engine: Engine, permit: Permit) -> None:
        """Commit writes and outcome of a run whose handler never had a connection.

        So nothing of the run has it either, and the next one may use the same.

        Raises:
            OutcomeRefusedError: the fence is lost.
            sqlalchemy.exc.DBAPIError: nothing was committed, or the COMMIT was not answered.
        """
        thread = threading.get_ident()
        connection = self._unused.get(thread)
        if connection is None:
            connection = self._unused[thread] = taken(engine)
        driver = driver_of(connection)
        driver.permit = permit
        try:
            driver.commit()
        except psycopg.Error as error:
            raise uncommitted(connection, error) from error
        finally:
            if driver.closed or driver.needs_look or driver.is_spoiled:
                self.end_unused()

    def end_unused(self) -> None:
        """Return this thread's to its pool, if it has one."""
        connection = self._unused.pop(threading.get_ident(), None)
        if connection is not None:
            give_back(connection.close, connection.invalidate)
