"""How engines lend connections to handlers: from their pool, each object to one run.

SQLAlchemy's Connection and its pool's proxy belong to one run anyway. When they come back, an open
transaction is rolled back; the session is looked at, and closed if something stays in it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias, cast

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState
from sqlalchemy.util import await_only as await_

from tasks_app.runtime.fork_safety import keep_from_fork
from tasks_app.runtime.handler_db.driver_internals import SHARED_SESSIONS
from tasks_app.runtime.handler_db.handler_connections import (
    AsyncHandlerConnection,
    HandlerConnection,
)
from tasks_app.runtime.handler_db.handler_cursors import AsyncHandlerCursor, HandlerCursor
from tasks_app.runtime.handler_db.lost_cancellations import heeding_cancellations

Driver: TypeAlias = HandlerConnection | AsyncHandlerConnection


async def connect_async(*arguments: Any, **options: Any) -> AsyncHandlerConnection:
    with heeding_cancellations():
        return await AsyncHandlerConnection.connect(
            *arguments, cursor_factory=AsyncHandlerCursor, **options
        )


def lend(engine: Engine) -> None:
    """Lend an engine's connections to handlers, each object to one run."""
    event.listen(engine, "connect", _template)
    event.listen(engine, "reset", _leave)
    event.listen(engine, "checkin", _hand_on)
    if not engine.dialect.is_async:
        event.listen(engine, "do_connect", _connect)
        event.listen(engine, "begin", _begin)


def driver_of(connection: Connection | None) -> Any:
    """Return psycopg's connection, a :data:`Driver`."""
    assert connection is not None  # noqa: S101  SQLAlchemy's AsyncConnection may have none
    return connection.connection.driver_connection


def _connect(_dialect: Any, _entry: Any, arguments: Any, options: Any) -> HandlerConnection:
    return HandlerConnection.connect(*arguments, cursor_factory=HandlerCursor, **options)


def _begin(connection: Connection) -> None:
    if (driver := driver_of(connection)) is not None:  # none: it was detached
        driver.begin()


def _driver(dbapi_connection: Any) -> Driver:
    return cast("Driver", getattr(dbapi_connection, "driver_connection", dbapi_connection))


def _template(dbapi_connection: Any, _entry: ConnectionPoolEntry) -> None:
    _driver(dbapi_connection).be_template()


def _leave(dbapi_connection: Any, _entry: Any, state: PoolResetState) -> None:
    driver = _driver(dbapi_connection)
    if state.terminate_only or not state.asyncio_safe:
        return
    with suppress(psycopg.Error):  # then needs_look stays, and it is closed
        if isinstance(driver, AsyncHandlerConnection):
            await_(driver.break_off())
            if driver.needs_look:
                await_(driver.leave())
        else:
            driver.break_off()
            if driver.needs_look:
                driver.leave()


def _hand_on(dbapi_connection: Any, entry: Any) -> None:
    if dbapi_connection is None:
        return
    for key in [key for key in entry.info if not str(key).startswith("tasks_app")]:
        del entry.info[key]  # of one run
    driver = _driver(dbapi_connection)
    spoiled = driver.is_spoiled or driver.needs_look or driver.ended
    if spoiled or not SHARED_SESSIONS.works:
        entry.invalidate()
        return
    heir = driver.hand_on()
    keep_from_fork(heir)
    if driver is dbapi_connection:
        entry.dbapi_connection = heir
    else:
        adapter = type(dbapi_connection)
        given = (dbapi_connection.dbapi,) if hasattr(adapter, "dbapi") else ()  # SQLAlchemy 2.0
        entry.dbapi_connection = adapter(*given, heir)
