"""Whether a connection that lay idle still lives: asked before it is used again.

Servers restart and fail over, firewalls forget what is idle. Who finds out with his first statement
takes it for a loss of his own; a run that may be carried out only once would end with that.
"""

from __future__ import annotations

import select
import time
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util import await_

from tasks_app.runtime.handler_db.handler_connections import (
    AsyncHandlerConnection,
    HandlerConnection,
)

IDLE_S = 1.0
"""A connection that nobody has used for so long is asked; the socket of any is looked at."""
_LOSSES = "tasks_app losses of its database"
_SINCE = "tasks_app idle since"


class Losses:
    """When connections to one database were lost, by ``time.monotonic``."""

    def __init__(self) -> None:
        self.used = self.idle = float("-inf")
        """Of one that was in use: what was idle then is not used again. And of one that nobody
        used: so no statement of anybody's was to blame."""

    def watch(self, engine: Engine) -> None:
        """Let an engine lend no connection that died while it was idle, and note what it loses."""
        event.listen(engine, "connect", self._enter)
        event.listen(engine, "handle_error", self._heed)
        event.listen(engine, "invalidate", self._lost)
        event.listen(engine, "checkin", lambda _, entry: _rest(entry.info))
        event.listen(engine, "checkout", partial(_look, engine.dialect))

    def _enter(self, _: Any, entry: ConnectionPoolEntry) -> None:
        entry.info[_LOSSES] = self

    def _heed(self, context: ExceptionContext) -> None:
        if not context.is_disconnect or not isinstance(context.original_exception, psycopg.Error):
            return  # SQLAlchemy takes whatever breaks a statement off for one, as a time limit does
        self.used = time.monotonic()

    def _lost(self, _: Any, __: Any, error: BaseException | None) -> None:
        if isinstance(error, psycopg.Error | DBAPIError):
            self.used = time.monotonic()


def rest(connection: Connection) -> None:
    """Note that nobody uses a connection from here on, which does not go back to its pool."""
    _rest(connection.info)


def lives(connection: Connection) -> bool:
    """Tell whether one that :func:`rest` was said of may be used again; else it is closed."""
    try:
        found = _lives(connection.dialect, connection.connection.dbapi_connection, connection.info)
    except BaseException:
        connection.invalidate()
        raise
    if not found:
        connection.invalidate()
        connection.close()
    return found


def look_again(connection: Connection) -> None:
    """Replace what died between a run's having it and its first use of it."""
    if connection.closed or connection.invalidated or connection.in_transaction():
        return
    if _SINCE in connection.info:
        driver = connection.connection.dbapi_connection
        if not _lives(connection.dialect, driver, connection.info):
            connection.invalidate()


def _look(dialect: Dialect, connection: Any, entry: ConnectionPoolEntry, _: Any) -> None:
    if _SINCE in entry.info and not _lives(dialect, connection, entry.info):
        raise DisconnectionError("It died while it was idle.")


def _rest(info: dict[Any, Any]) -> None:
    info[_SINCE] = time.monotonic()


def _lives(dialect: Dialect, connection: Any, info: dict[Any, Any]) -> bool:
    driver, since = dialect.get_driver_connection(connection), info[_SINCE]
    losses: Losses = info[_LOSSES]
    if driver.pgconn.transaction_status != TransactionStatus.IDLE:
        return not driver.closed  # one of ours, begun a moment ago
    readable = _is_readable(driver)  # it was told something: most likely, that this is the end
    if not readable and since <= losses.used:
        return False
    if not readable and time.monotonic() - since < IDLE_S:
        return True
    try:
        if isinstance(driver, HandlerConnection):
            driver.ping()
        elif isinstance(driver, AsyncHandlerConnection):
            await_(driver.ping())
        else:
            dialect.do_ping(connection)
    except (psycopg.Error, OSError):
        losses.idle = time.monotonic()
        return False
    _rest(info)
    return True


def _is_readable(driver: Any) -> bool:
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    return bool(poll.poll(0))
