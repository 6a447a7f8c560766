"""Connections of one process. Engines are made on first use, never before a fork.

Two engines: ours has short lock and statement timeouts, so that nothing of ours waits long for
anybody; handlers get one without, because how long their SQL may take is their business.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tasks_app.pool.connection.readable import is_readable, make_readable
from tasks_app.runtime.db.errors import is_conflict, spares_handlers
from tasks_app.runtime.db.session_settings import (
    CHECK,
    FOR_A_TRANSACTION,
    NETWORK,
    OURS,
    UNHURRIED,
)
from tasks_app.runtime.fork_safety import keep_from_forks
from tasks_app.runtime.handler_db.connection_liveness import Losses, lives, rest
from tasks_app.runtime.handler_db.lending import connect_async, lend

_MARK = "_tasks_app_ours"


class Database:
    """The database of one process; after a fork it starts afresh."""

    def __init__(self, url: str, *, handlers: int = 1, prepare: bool = True) -> None:
        self._url = url
        self._handlers = handlers
        self._prepare = prepare
        self._pid = 0
        self.losses = Losses()
        """Of all its engines: what ends connections of one ends those of the others."""
        self._lock = threading.Lock()
        self._engine: Engine
        self._autocommit: Engine
        self._handler_engine: Engine
        self._at_hand: list[Connection] = []
        """One at most, for single statements: to get it from its pool and to give it back takes as
        long as a statement, for a child that was idle."""

    @property
    def engine(self) -> Engine:
        """For our own short transactions."""
        self._fresh()
        return self._engine

    @property
    def handler_engine(self) -> Engine:
        """For what handlers do through ``ctx.session``."""
        self._fresh()
        return self._handler_engine

    def async_engine(self, connections: int) -> AsyncEngine:
        """Return a new engine for async handlers; its connections belong to one event loop.

        Who finds all of them lent waits for as long as its own time limit lets it.
        """
        engine = create_async_engine(
            self._url,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=None,
            connect_args={**self._arguments(CHECK), "async_creator_fn": connect_async},
        )
        event.listen(engine.sync_engine, "handle_error", _mark)
        keep_from_forks(engine.sync_engine)
        self.losses.watch(engine.sync_engine)
        lend(engine.sync_engine)
        _keep_readable(engine.sync_engine)
        return engine

    def migration_engine(self) -> Engine:
        """Return a new engine whose statements may take as long as they take."""
        return self._make(UNHURRIED, 2)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open one of our transactions; it commits at the end of the block."""
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """Open a connection on which each statement commits by itself: one round trip, not three.

        Whether a statement that was not answered has committed, nobody knows, as with a COMMIT.
        Behind a pooler, where settings last for a transaction, the block is one.
        """
        if not self._prepare:
            with self.begin() as connection:
                yield connection
            return
        self._fresh()
        connection = self._from_hand() or self._autocommit.connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._keep_at_hand(connection)

    def _from_hand(self) -> Connection | None:
        with suppress(IndexError):  # another thread was faster
            connection = self._at_hand.pop()
            return connection if lives(connection) else None
        return None

    def _keep_at_hand(self, connection: Connection) -> None:
        if not self._at_hand and not connection.invalidated:
            connection.rollback()  # of nothing: each statement has committed
            rest(connection)
            self._at_hand.append(connection)
        else:
            connection.close()

    def dispose(self) -> None:
        """Close all connections."""
        if self._pid == os.getpid():
            while self._at_hand:
                self._at_hand.pop().close()
            self._engine.dispose()
            self._handler_engine.dispose()

    def _fresh(self) -> None:
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid == os.getpid():
                return
            if self._pid:  # forked: these sockets are the parent's
                self._at_hand = []
                self._engine.dispose(close=False)
                self._handler_engine.dispose(close=False)
            self._engine = self._make(OURS, 5)
            if not self._prepare:
                event.listen(self._engine, "begin", settle_in)
            self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            self._handler_engine = self._make(CHECK, self._handlers)
            lend(self._handler_engine)
            _keep_readable(self._handler_engine)
            self._pid = os.getpid()

    def _arguments(self, settings: dict[str, str]) -> dict[str, Any]:
        """A pooler takes no options at the start, and deals out its servers anew each time."""
        if not self._prepare:
            return {**NETWORK, "prepare_threshold": None}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        if settings is OURS:  # few statements, each again and again
            return {**NETWORK, "options": options, "prepare_threshold": 1}
        return {**NETWORK, "options": options}

    def _make(self, settings: dict[str, str], size: int) -> Engine:
        engine = create_engine(
            self._url,
            isolation_level="READ COMMITTED",
            hide_parameters=True,  # errors get into logs and pools, and carry payloads
            pool_size=size,
            max_overflow=5,
            pool_use_lifo=True,  # the one that was used last is warm
            pool_pre_ping=False,  # of those alone that were idle: see liveness
            connect_args=self._arguments(settings),
        )
        event.listen(engine, "handle_error", _mark)
        keep_from_forks(engine)
        self.losses.watch(engine)
        return engine


def settle_in(connection: Connection) -> None:
    """Ask for our settings, until the end of the transaction that has just begun."""
    connection.exec_driver_sql(FOR_A_TRANSACTION)


def _keep_readable(engine: Engine) -> None:
    """Handlers have their role's settings, but for styles in which psycopg could read nothing.

    Only of a role that has such is anything asked, once a transaction.
    """

    def look(connection: Any, _record: object) -> None:
        driver = getattr(connection, "driver_connection", connection)
        if not (is_readable(driver) or event.contains(engine, "begin", make_readable)):
            event.listen(engine, "begin", make_readable)

    event.listen(engine, "connect", look)


def _mark(context: ExceptionContext) -> None:
    """Remember that an error came from our database, not from one of a handler's own."""
    if context.sqlalchemy_exception is not None:
        setattr(context.sqlalchemy_exception, _MARK, True)


def is_conflict_here(error: BaseException) -> bool:
    """Tell whether a transaction of our database was in another's way."""
    return is_conflict(error) and getattr(error, _MARK, False)


def is_lost(error: BaseException) -> bool:
    """Tell whether our database, and no other that a handler talks to, serves nobody just now."""
    return spares_handlers(error) and getattr(error, _MARK, False)
