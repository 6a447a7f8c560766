"""Sessions and their transactions: read-only ones, settings, and the reset after a handler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from typing import Any

from sqlalchemy import Connection, Engine, text

_STATUS = text("SELECT pg_xact_status(CAST(:transaction AS xid8))")


def current_transaction_id(connection: Connection) -> str:
    return str(connection.execute(text("SELECT CAST(pg_current_xact_id() AS text)")).scalar_one())


def has_committed(connection: Connection, transaction: str) -> bool | None:
    """None: the transaction is in progress, or too old."""
    status = connection.execute(_STATUS, {"transaction": transaction}).scalar()
    return {"committed": True, "aborted": False}.get(str(status))


def set_lock_timeout(connection: Connection, span: str) -> None:
    """Let statements of this transaction fail after waiting ``span`` for a lock."""
    connection.execute(text("SELECT set_config('lock_timeout', :span, true)"), {"span": span})


# Without JIT: compiling such a statement takes longer than running it.
_READ_ONLY = text("""
    SELECT set_config('transaction_read_only', 'on', true), set_config('jit', 'off', true),
        set_config('statement_timeout', :span, true)""")


@contextmanager
def read_only_transaction(engine: Engine, longest: timedelta) -> Iterator[Connection]:
    """Open a transaction that cannot write and whose statements may take ``longest`` each."""
    with engine.begin() as connection:
        connection.execute(_READ_ONLY, {"span": f"{longest // timedelta(milliseconds=1)}ms"})
        yield connection


def driver_of(connection: Connection) -> Any:
    """Return psycopg's connection, also of one that belongs to no pool."""
    return connection.connection.dbapi_connection


_BACKEND_PID = text("SELECT pg_backend_pid()")


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler such as PgBouncer is between us and the server."""
    # Its process id differs from the server's. After our transaction the server's connection may
    # serve another client, which would get our notices.
    return bool(driver_of(connection).info.backend_pid != connection.scalar(_BACKEND_PID))


READABLE_STYLES = text("""
    SELECT set_config('IntervalStyle', 'postgres', true), set_config('DateStyle', 'ISO', true)""")


def make_readable(connection: Connection) -> None:
    """Set styles of dates and intervals that psycopg can read, if needed, for this transaction."""
    # The order of days and months stays.
    if not is_readable(connection.connection.driver_connection):
        connection.execute(READABLE_STYLES)


def is_readable(driver: Any) -> bool:
    """Whether psycopg can read the styles of dates and intervals, which it knows locally."""
    session = getattr(driver, "pgconn", None)
    if session is None:  # another driver
        return True
    spans = session.parameter_status(b"IntervalStyle") or b"postgres"
    dates = session.parameter_status(b"DateStyle") or b"ISO"
    return spans == b"postgres" and dates.startswith(b"ISO")


PLANNER_SETTINGS = {
    # Our statements look rows up by key, a group at a time. With the statistics of an empty pool,
    # or yesterday's, the planner would read whole tables: so it gets no choice.
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(
        ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"
    ),
    # Up to PostgreSQL 17, a plan that needs a method that is off costs 1e10 more (18 counts apart).
    # Above jit_above_cost the server compiles: a second for a millisecond's work.
    "jit": "off",
}
"""For our own statements only; the settings of a handler's role hold for its SQL."""
PLANNER_SETTINGS_OF_FUNCTION = "\n".join(
    f"SET {name} TO {value}" for name, value in PLANNER_SETTINGS.items()
)
"""The same for a function that runs in sessions of others."""
FIRE = b"SET CONSTRAINTS ALL IMMEDIATE"
RESETS = (b"RESET SESSION AUTHORIZATION", b"RESET ROLE", b"RESET ALL")
RESET = b"; ".join(RESETS)
FIRE_AND_RESET = FIRE + b"; " + RESET
_LEFT = """pg_catalog.pg_my_temp_schema() <> 0
    OR EXISTS (SELECT FROM pg_catalog.pg_listening_channels())
    OR EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE is_holdable)
    OR EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE from_sql)"""
"""Temporary tables (a session that ever had one), channels, cursors, ``PREPARE``."""
FIND_LEFTOVERS = f"SELECT {_LEFT}, pg_catalog.pg_advisory_unlock_all()".encode()
"""Runs after the transaction, as the session's advisory locks have to last until its COMMIT."""
SAME_ENCODING = b"""SELECT CASE WHEN pg_catalog.current_setting('client_encoding') = 'UTF8' THEN 0
    ELSE ('ctx.write: a statement has changed client_encoding to '
        || pg_catalog.current_setting('client_encoding'))::integer END"""
"""Fails if a function has changed the encoding, in which later parameters are read."""
NO_TABLES = b"SELECT 1 / (pg_catalog.pg_my_temp_schema() = 0)::integer"
"""Fails in a session with temporary tables: one may hide a table of the same name."""
UNFLUSHED = b"SELECT pg_catalog.set_config('synchronous_commit', 'off', true)"
"""For a COMMIT that a flush follows at once, before its outcome is reported."""
FLUSH = b"SELECT pg_catalog.pg_logical_emit_message(true, 'tasks_app', '')"
"""Writes to the WAL, so that its own COMMIT flushes all records before it."""
_LIMIT = "SELECT pg_catalog.set_config('statement_timeout', %(limit)s, true)"


def limit_statements(connection: Connection, limit_s: float) -> None:
    """Limit each statement and deferred trigger, up to the reset before the settle."""
    limit_ms = min(max(1, ceil(limit_s * 1000)), 2**31 - 1)  # PostgreSQL's maximum
    connection.exec_driver_sql(_LIMIT, {"limit": str(limit_ms)})


def has_lock_timeout(connection: Connection) -> bool:
    """Whether its role, database or server limits the wait for a lock."""
    return bool(connection.exec_driver_sql("SHOW lock_timeout").scalar_one() != "0")
