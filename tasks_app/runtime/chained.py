"""Connections whose COMMIT begins the next transaction: a round trip less for each short run."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import psycopg
from psycopg import errors, generators
from psycopg.pq import ExecStatus, PipelineStatus
from sqlalchemy import Connection, Engine, event


class Chained(psycopg.Connection[Any]):
    """Of handlers."""

    chains = False
    """Whether the next COMMIT does so."""

    def commit(self) -> None:
        """Commit; what comes next finds a transaction that has done nothing, or begins one."""
        chains, self.chains = self.chains, False
        if chains and self.pgconn.pipeline_status == PipelineStatus.OFF:
            with self.lock:
                self.wait(self._chain())
        else:
            super().commit()

    def _chain(self) -> Generator[Any, Any, None]:
        """As psycopg sends a COMMIT: a cursor takes longer than the round trip that is spared."""
        self.pgconn.send_query(b"COMMIT AND CHAIN")
        *_, result = yield from generators.execute(self.pgconn)
        if result.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)


def chain(engine: Engine) -> None:
    """Let an engine make such connections."""
    event.listen(engine, "do_connect", _connect)


def _connect(_dialect: Any, _entry: Any, arguments: Any, keywords: Any) -> Chained:
    return Chained.connect(*arguments, **keywords)


def commit(connection: Connection, *, more: bool) -> None:
    """Commit; with ``more`` a transaction is open then, of which SQLAlchemy does not know."""
    driver: Any = connection.connection.driver_connection
    driver.chains = more
    try:
        connection.commit()
    finally:
        driver.chains = False


def unchain(connection: Connection) -> None:
    """End a transaction that nobody wanted; a connection without one is left alone."""
    connection.connection.rollback()
