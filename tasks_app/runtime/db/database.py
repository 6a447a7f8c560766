"""The engines of one process, made on first use, and the settings of their sessions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from tasks_app.pool.connection.sessions import PLANNER_SETTINGS, is_readable, make_readable
from tasks_app.runtime.db.errors import mark
from tasks_app.runtime.handler_db.lending import Losses, is_alive, keep_from_forks, lend, note_idle
from tasks_app.runtime.handler_db.loop_connection import loop_engine


class Database:
    """The database of one process; after a fork it opens connections of its own."""

    def __init__(self, url: str, *, handlers: int = 1, prepare: bool = True) -> None:
        self._url = url
        self._handlers = handlers
        self.prepares: bool = prepare
        """Whether statements stay prepared in its sessions: not behind a pooler."""
        self._pid = 0
        self.losses: Losses = Losses()
        """Of all its engines: what ends connections of one ends those of the others."""
        self._lock = threading.Lock()
        self._engine: Engine
        self._autocommit: Engine
        self._handler_engine: Engine
        self._brief_engine: Engine
        self._at_hand: list[Connection] = []
        """At most one, for single statements: after an idle time, a checkout from the pool and the
        return take as long as a statement."""

    @property
    def engine(self) -> Engine:
        """For short transactions of our own."""
        self._fresh()
        return self._engine

    @property
    def handler_engine(self) -> Engine:
        """For what handlers do through ``ctx.session``."""
        self._fresh()
        return self._handler_engine

    @property
    def brief_engine(self) -> Engine:
        """For statements of ``ctx.write``, where those of several handlers are sent together."""
        self._fresh()
        return self._brief_engine

    def async_engine(self, connections: int) -> AsyncEngine:
        """Return a new engine for async handlers; its connections belong to one event loop.

        A run that finds all of them lent waits for one, up to its own time limit.
        """
        engine = loop_engine(self._url, pool_timeout=None, **self._options(CHECK, connections, 0))
        self._watch(engine.sync_engine)
        lend(engine.sync_engine)
        _keep_readable(engine.sync_engine)
        return engine

    def migration_engine(self) -> Engine:
        """Return a new engine without time limits for statements."""
        return self._make(UNHURRIED, 2)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open one of our own transactions; it commits at the end of the block."""
        with self._connect() as connection, connection.begin():
            yield connection

    def ensure_connections(self) -> None:
        """If a connection was refused, get one for handlers beside one of ours, into the pools.

        A child that claims without them holds tasks that it cannot run.

        Raises:
            sqlalchemy.exc.DBAPIError: the server still refuses.
        """
        if self.losses.short:
            self._clear_hand()
            with self._connect(), self.handler_engine.connect():
                self.losses.short = False

    def _connect(self) -> Connection:
        """Check out one of ours, at the server's connection limit the one at hand.

        Otherwise a child could not renew what it claimed by that one.
        """
        try:
            return self.engine.connect()
        except DBAPIError:
            if not self._clear_hand():
                raise
            return self.engine.connect()

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """Open a connection on which each statement commits by itself: one round trip, not three.

        Whether a statement that was not answered has committed is not known, as with a COMMIT.
        Behind a pooler, where settings last for a transaction, the block is one transaction.
        """
        if not self.prepares:
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
        try:
            connection = self._at_hand.pop()
        except IndexError:  # another thread was faster
            return None
        return connection if is_alive(connection) else None

    def _keep_at_hand(self, connection: Connection) -> None:
        if not self._at_hand and not connection.invalidated:
            connection.rollback()  # of nothing: each statement has committed
            note_idle(connection.info)
            self._at_hand.append(connection)
        else:
            connection.close()

    def _clear_hand(self) -> bool:
        """Return the connection at hand to its pool, if there is one."""
        with suppress(IndexError):  # another thread was faster
            self._at_hand.pop().close()
            return True
        return False

    def close_idle(self) -> None:
        """Close what is idle; what is in use returns to the same pool."""
        self._clear_hand()
        self._fresh()
        for engine in self._engines:
            engine.pool.dispose()

    def dispose(self) -> None:
        if self._pid == os.getpid():
            self._clear_hand()
            for engine in self._engines:
                engine.dispose()

    def _fresh(self) -> None:
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid == os.getpid():
                return
            if self._pid:  # forked: these sockets are the parent's
                self._at_hand = []
                for engine in self._engines:
                    engine.dispose(close=False)
            self._engine = self._make(OURS, 5)
            if not self.prepares:
                event.listen(self._engine, "begin", settle_in)
            self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            self._handler_engine = self._make(CHECK, self._handlers)
            self._brief_engine = self._make(BRIEF, 1)
            lend(self._handler_engine)
            lend(self._brief_engine)
            _keep_readable(self._handler_engine)
            self._pid = os.getpid()

    @property
    def _engines(self) -> tuple[Engine, ...]:
        return self._engine, self._handler_engine, self._brief_engine

    def _arguments(self, settings: dict[str, str]) -> dict[str, Any]:
        """A pooler takes no options at connect, and assigns servers anew for each transaction."""
        if not self.prepares:
            return {**NETWORK, "prepare_threshold": None}
        ours = [f"-c {name}={value}" for name, value in settings.items()]
        options = " ".join([*options_of(self._url), *ours])  # of two of a name the last one holds
        if settings is OURS:  # few statements, each again and again
            return {**NETWORK, "options": options, "prepare_threshold": 1}
        return {**NETWORK, "options": options}

    def _make(self, settings: dict[str, str], size: int) -> Engine:
        # looked up late for handlers: their programs may have instrumented it
        make = create_engine if settings is OURS else sqlalchemy.create_engine
        engine = make(self._url, **self._options(settings, size, 5))
        self._watch(engine)
        return engine

    def _options(self, settings: dict[str, str], size: int, overflow: int) -> dict[str, Any]:
        return {
            "isolation_level": "READ COMMITTED",
            "hide_parameters": True,  # errors get into logs and tables, and would carry payloads
            "pool_size": size,
            "max_overflow": overflow,
            "pool_use_lifo": True,  # the one used last is warm
            "pool_pre_ping": False,  # only idle ones are pinged: see lending
            "connect_args": self._arguments(settings),
        }

    def _watch(self, engine: Engine) -> None:
        event.listen(engine, "handle_error", mark)
        keep_from_forks(engine)
        self.losses.watch(engine)


def _keep_readable(engine: Engine) -> None:
    """Keep the settings of the handlers' role, except styles that psycopg cannot read.

    These are set in each transaction, and only for a role that has them.
    """

    def check(driver: Any, _record: object) -> None:
        if not (is_readable(driver) or event.contains(engine, "begin", make_readable)):
            event.listen(engine, "begin", make_readable)

    event.listen(engine, "connect", check)


NETWORK = {
    "client_encoding": "utf8",  # not the role's, which may lack characters; poolers accept it, too
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms: a silent partition is noticed while a lease still holds
}
CHECK = {"client_connection_check_interval": "500"}
"""In ms. Otherwise a killed client's statement holds its locks for as long as it runs."""
BRIEF = {**CHECK, "statement_timeout": "100"}
"""In ms, for statements that share a round trip. One that is cut off is sent again alone."""
OURS = {
    **CHECK,
    **PLANNER_SETTINGS,
    # How values are written and read.
    "IntervalStyle": "postgres",
    "DateStyle": "ISO",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read\\ committed",  # of single statements
    # In ms. Otherwise a housekeeper that waits for a lock looks dead, and its child is killed.
    "lock_timeout": "1000",
    "statement_timeout": "30000",
    # In ms. A process that is stopped or cut off within a transaction must not keep its locks:
    # those of a scanner would end all scanning.
    "idle_in_transaction_session_timeout": "5000",
}
UNHURRIED = {
    **CHECK,
    **dict.fromkeys(
        ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"), "0"
    ),
}
FOR_A_TRANSACTION = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', true)"
    for name, value in OURS.items()
    if name != "default_transaction_isolation"  # it is too late for this one
)


def options_of(url: str) -> tuple[str, ...]:
    """Return the options of the URL, or else of the environment, which ours would replace.

    Such as a ``search_path`` or a ``role``, without which the pool would be another one.
    """
    options = make_url(url).query.get("options") or os.environ.get("PGOPTIONS") or ()
    return (options,) if isinstance(options, str) else options


def settle_in(connection: Connection) -> None:
    """Apply our settings until the end of the transaction that has just begun."""
    connection.exec_driver_sql(FOR_A_TRANSACTION)


CONNECTIONS = 4
_FIRST = "SET TRANSACTION READ ONLY"
_THEN = """SELECT set_config('statement_timeout', '2000', true), set_config('jit', 'off', true),
    set_config('lock_timeout', '500', true)"""


def reading_engine(url: str) -> Engine:
    """Return an engine of at most CONNECTIONS. It sets each transaction, so poolers are welcome."""
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=2,
        pool_pre_ping=True,
        connect_args={**NETWORK, "prepare_threshold": None},
    )
    event.listen(engine, "begin", _begin_reading)
    event.listen(engine, "handle_error", mark)
    keep_from_forks(engine)
    return engine


def _begin_reading(connection: Connection) -> None:
    connection.exec_driver_sql(_FIRST)
    connection.exec_driver_sql(_THEN)
