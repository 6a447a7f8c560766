"""How engines lend connections to handlers: from their pool, each object to one run.

SQLAlchemy's Connection and its pool's proxy belong to one run anyway. When they come back, an open
transaction is rolled back; the session is looked at, and closed if something stays in it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

from tasks_app.runtime.fork_safety import keep_from_fork
from tasks_app.runtime.handler_db.driver_internals import SHARED_SESSIONS
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.handler_cursors import HandlerCursor

ADOPT = "_tasks_app_adopt"
"""The attribute of a plain run's Connection that takes each driver's connection for the run."""


def lend(engine: Engine) -> None:
    """Lend an engine's connections to handlers, each object to one run."""
    event.listen(engine, "connect", _template)
    event.listen(engine, "reset", _leave)
    event.listen(engine, "checkin", _hand_on)
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
        adopt(connection)  # its driver may stand in the place of one that was lost
    driver.begin()


def _template(driver: HandlerConnection, _entry: ConnectionPoolEntry) -> None:
    driver.be_template()


def _leave(driver: HandlerConnection, _entry: Any, state: PoolResetState) -> None:
    if state.terminate_only or not state.asyncio_safe:
        return
    with suppress(psycopg.Error):  # then needs_look stays, and it is closed
        driver.break_off()
        if driver.needs_look:
            driver.leave()


def _hand_on(driver: HandlerConnection | None, entry: Any) -> None:
    if driver is None:
        return
    for key in [key for key in entry.info if not str(key).startswith("tasks_app")]:
        del entry.info[key]  # of one run
    spoiled = driver.is_spoiled or driver.needs_look or driver.ended
    if spoiled or not SHARED_SESSIONS.works:
        entry.invalidate()
        return
    entry.dbapi_connection = heir = driver.hand_on()
    keep_from_fork(heir)
