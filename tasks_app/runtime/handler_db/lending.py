"""How engines lend connections to runs: checked before reuse, and never shared with forks."""

from __future__ import annotations

import os
import select
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

from tasks_app.domain.config.unreachable import TOO_MANY
from tasks_app.runtime.handler_db.driver_internals import SHARED_SESSIONS
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection, HandlerCursor

ADOPT = "_tasks_app_adopt"
"""The attribute of a plain run's Connection that takes each driver's connection for the run."""


def lend(engine: Engine) -> None:
    """Lend an engine's connections to handlers, each object to one run."""
    event.listen(engine, "connect", lambda driver, _entry: driver.save_template())
    event.listen(engine, "reset", _reset)
    event.listen(engine, "checkin", _hand_over)
    event.listen(engine, "begin", _begin)
    if not engine.dialect.is_async:
        event.listen(engine, "do_connect", _connect)


def driver_of(connection: Connection) -> Any:
    """Return psycopg's connection, a HandlerConnection; None: it was detached."""
    return connection.connection.driver_connection


def _connect(_dialect: Any, _entry: Any, arguments: Any, options: Any) -> HandlerConnection:
    return HandlerConnection.connect(*arguments, cursor_factory=HandlerCursor, **options)


def _begin(connection: Connection) -> None:
    if (driver := driver_of(connection)) is None:  # it was detached
        return
    if (adopt := vars(connection).get(ADOPT)) is not None:
        adopt(connection)  # its driver may replace one that was lost
    driver.begin()


def _reset(driver: HandlerConnection, _entry: Any, state: PoolResetState) -> None:
    if state.terminate_only or not state.asyncio_safe:
        return
    with suppress(psycopg.Error):  # then needs_check stays, and it is closed
        driver.break_off()
        if driver.needs_check:
            driver.end_use()


def _hand_over(driver: HandlerConnection | None, entry: Any) -> None:
    if driver is None:
        return
    for key in [key for key in entry.info if not str(key).startswith("tasks_app")]:
        del entry.info[key]  # of one run
    spoiled = driver.is_spoiled or driver.needs_check or driver.ended
    if spoiled or not SHARED_SESSIONS.works:
        entry.invalidate()
        return
    entry.dbapi_connection = after = driver.hand_over()
    keep_from_fork(after)


IDLE_S = 1.5
"""A connection that was idle for longer is pinged; of others only the socket is checked. Longer
than the usual interval of scans, so that an idle system pings before none of them."""
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
        """When the server refused one because it had none left, and did not just stop or start."""
        self.short: bool = False
        """Whether the server refused a connection, and has not given the two that a child needs
        since (``Database.ensure_connections``)."""

    def watch(self, engine: Engine) -> None:
        """Let an engine lend no connection that died while it was idle, and note what it loses."""
        event.listen(engine, "connect", self._enter)
        event.listen(engine, "handle_error", self._note_error)
        event.listen(engine, "invalidate", self._lost)
        event.listen(engine, "checkin", lambda _, entry: note_idle(entry.info))
        event.listen(engine, "checkout", partial(_check_alive, engine.dialect))

    def _enter(self, _: Any, entry: ConnectionPoolEntry) -> None:
        entry.info[_LOSSES] = self

    def _note_error(self, context: ExceptionContext) -> None:
        if context.connection is None:  # it was refused, as with too many
            self.idle = time.monotonic()
            if any(text in str(context.original_exception) for text in TOO_MANY):
                self.crowded = self.idle
            self.short = True
            return
        if not context.is_disconnect or not isinstance(context.original_exception, psycopg.Error):
            return  # SQLAlchemy takes a time limit that breaks off a statement for a loss, too
        self.used = time.monotonic()

    def _lost(self, _: Any, __: Any, error: BaseException | None) -> None:
        if isinstance(error, psycopg.Error | DBAPIError):
            self.used = time.monotonic()


def note_idle(info: dict[Any, Any]) -> None:
    """Note in its ``info`` that a connection is idle from now on."""
    info[_SINCE] = time.monotonic()


def is_alive(connection: Connection) -> bool:
    """Whether a connection after :func:`note_idle` may be used again; else it is closed."""
    try:
        found = _is_alive(
            connection.dialect, connection.connection.dbapi_connection, connection.info
        )
    except BaseException:
        connection.invalidate()
        raise
    if not found:
        connection.invalidate()
        connection.close()
    return found


def _check_alive(dialect: Dialect, connection: Any, entry: ConnectionPoolEntry, _: Any) -> None:
    if _SINCE in entry.info and not _is_alive(dialect, connection, entry.info):
        raise DisconnectionError("It died while it was idle.")


def _is_alive(dialect: Dialect, connection: Any, info: dict[Any, Any]) -> bool:
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
    note_idle(info)
    return True


def _is_readable(driver: Any) -> bool:
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    return bool(poll.poll(0))


_ours: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_from_forks(engine: Engine) -> None:
    """Let no process that is forked from now on use the connections of an engine."""
    event.listen(engine, "connect", _enter)


def keep_from_fork(connection: Any) -> None:
    """Do the same for one connection of psycopg, which may share another's socket."""
    _ours.add(connection)


def _enter(_connection: Any, entry: ConnectionPoolEntry) -> None:
    _ours.add(entry.driver_connection)


def _cut_off() -> None:
    """In the forked process: replace each socket by /dev/null, where every read is the end."""
    with suppress(Exception):
        null = os.open(os.devnull, os.O_RDWR)
        for connection in list(_ours):
            with suppress(Exception):  # closed already
                os.dup2(null, connection.fileno(), inheritable=False)
        os.close(null)
    _ours.clear()


os.register_at_fork(after_in_child=_cut_off)
