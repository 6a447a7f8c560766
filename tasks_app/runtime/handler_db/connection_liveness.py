"""Checks whether an idle connection still lives before it is used again.

Servers restart and fail over, and firewalls drop idle connections. Without the check the first
statement of a run would fail, and with it the run; an ``at_most_once`` task would end there.
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

from tasks_app.domain.config.unreachable import TOO_MANY
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection

IDLE_S = 1.5
"""A connection that was idle for longer is asked; of others only the socket is checked. Longer than
the usual interval of scans, so that an idle system asks before none of them."""
_LOSSES = "tasks_app losses of its database"
_SINCE = "tasks_app idle since"


class Losses:
    """When connections to one database were lost, by ``time.monotonic``."""

    def __init__(self) -> None:
        self.used: float = float("-inf")
        self.idle: float = float("-inf")
        """``used``: of a connection in use; those that were idle then are not used again.
        ``idle``: of one that was idle, so that no statement caused the loss."""
        self.crowded: float = float("-inf")
        """When it gave none because it had none left; one that stops or starts gives none, too."""
        self.short: bool = False
        """Whether the server refused a connection, and has not given the two that a child needs
        since (``Database.secure``)."""

    def watch(self, engine: Engine) -> None:
        """Let an engine lend no connection that died while it was idle, and note what it loses."""
        event.listen(engine, "connect", self._enter)
        event.listen(engine, "handle_error", self._heed)
        event.listen(engine, "invalidate", self._lost)
        event.listen(engine, "checkin", lambda _, entry: rest(entry.info))
        event.listen(engine, "checkout", partial(_look, engine.dialect))

    def _enter(self, _: Any, entry: ConnectionPoolEntry) -> None:
        entry.info[_LOSSES] = self

    def _heed(self, context: ExceptionContext) -> None:
        if context.connection is None:  # none was to be had, as with too many: nobody ended one
            self.idle = time.monotonic()
            if any(said in str(context.original_exception) for said in TOO_MANY):
                self.crowded = self.idle
            self.short = True
            return
        if not context.is_disconnect or not isinstance(context.original_exception, psycopg.Error):
            return  # SQLAlchemy takes a time limit that breaks off a statement for a loss, too
        self.used = time.monotonic()

    def _lost(self, _: Any, __: Any, error: BaseException | None) -> None:
        if isinstance(error, psycopg.Error | DBAPIError):
            self.used = time.monotonic()


def rest(info: dict[Any, Any]) -> None:
    """Note in its ``info`` that a connection is idle from now on."""
    info[_SINCE] = time.monotonic()


def lives(connection: Connection) -> bool:
    """Whether a connection after :func:`rest` may be used again; else it is closed."""
    try:
        found = _lives(connection.dialect, connection.connection.dbapi_connection, connection.info)
    except BaseException:
        connection.invalidate()
        raise
    if not found:
        connection.invalidate()
        connection.close()
    return found


def _look(dialect: Dialect, connection: Any, entry: ConnectionPoolEntry, _: Any) -> None:
    if _SINCE in entry.info and not _lives(dialect, connection, entry.info):
        raise DisconnectionError("It died while it was idle.")


def _lives(dialect: Dialect, connection: Any, info: dict[Any, Any]) -> bool:
    driver, since = dialect.get_driver_connection(connection), info[_SINCE]
    losses: Losses = info[_LOSSES]
    if driver.pgconn.transaction_status != TransactionStatus.IDLE:
        return not driver.closed  # one of ours, begun a moment ago
    readable = _is_readable(driver)  # the server sent something: most likely, it ends
    if not readable and since <= losses.used:
        return False
    if not readable and time.monotonic() - since < IDLE_S:
        return True
    try:
        if isinstance(driver, HandlerConnection):
            driver.ping()
        else:
            dialect.do_ping(connection)
    except (psycopg.Error, OSError):
        losses.idle = time.monotonic()
        return False
    rest(info)
    return True


def _is_readable(driver: Any) -> bool:
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    return bool(poll.poll(0))
