"""Sessions and their transactions: read-only ones, settings, and the reset after a handler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from typing import Any

from sqlalchemy import Connection, Engine, text

_THIS = text("SELECT CAST(pg_current_xact_id() AS text)")
_STATUS = text("SELECT pg_xact_status(CAST(:transaction AS xid8))")
_PATIENCE = text("SELECT set_config('lock_timeout', :span, true)")
_VERDICTS = {"committed": True, "aborted": False}


def this_transaction(connection: Connection) -> str:
    return str(connection.execute(_THIS).scalar_one())


def has_committed(connection: Connection, transaction: str) -> bool | None:
    """Tell what became of a transaction; None: it goes on, or is too long ago."""
    status = connection.execute(_STATUS, {"transaction": transaction}).scalar()
    return _VERDICTS.get(str(status))


def wait_for_locks(connection: Connection, span: str) -> None:
    """Let statements of this transaction fail after waiting ``span`` for a lock."""
    connection.execute(_PATIENCE, {"span": span})


# To compile a statement would take longer than to run it.
_LOOK = text("""
    SELECT set_config('transaction_read_only', 'on', true), set_config('jit', 'off', true),
        set_config('statement_timeout', :span, true)""")


@contextmanager
def read_only_transaction(engine: Engine, longest: timedelta) -> Iterator[Connection]:
    """Open a transaction that cannot write, none of whose statements takes longer than that."""
    with engine.begin() as connection:
        connection.execute(_LOOK, {"span": f"{longest // timedelta(milliseconds=1)}ms"})
        yield connection


_SERVER = text("SELECT pg_backend_pid()")


def driver_of(connection: Connection) -> Any:
    """Return psycopg's connection, also of one that belongs to no pool."""
    return connection.connection.dbapi_connection


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler stands between us and the server, as PgBouncer does.

    It tells another process id than the server's, and what it gives us for a transaction may serve
    another client in the next: that one would get our notices.
    """
    return bool(driver_of(connection).info.backend_pid != connection.scalar(_SERVER))


READABLE_STYLES = text("""
    SELECT set_config('IntervalStyle', 'postgres', true), set_config('DateStyle', 'ISO', true)""")


def make_readable(connection: Connection) -> None:
    """Let psycopg read both until the transaction ends; only where its styles are others.

    The order of days and months stays as it is.
    """
    if not is_readable(connection.connection.driver_connection):
        connection.execute(READABLE_STYLES)


def is_readable(driver: Any) -> bool:
    """Whether psycopg reads both as it is. It knows the styles without asking."""
    session = getattr(driver, "pgconn", None)
    if session is None:  # another driver, which has its own ways
        return True
    spans = session.parameter_status(b"IntervalStyle") or b"postgres"
    dates = session.parameter_status(b"DateStyle") or b"ISO"
    return spans == b"postgres" and dates.startswith(b"ISO")


PLANNER_SETTINGS = {
    # Our statements look rows up by key, a group at a time. Planned while the pool was empty, or
    # by yesterday's statistics, they would read whole tables: so the planner gets no choice.
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(
        ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"
    ),
    # Up to PostgreSQL 17, what is off adds 1e10 to the cost of a plan that cannot do without it (18
    # counts it apart). Above jit_above_cost the server compiles: a second for a millisecond's work.
    "jit": "off",
}
"""For our own statements; the SQL of handlers is planned as their role says."""
PLANNER_SETTINGS_OF_FUNCTION = "\n".join(
    f"SET {name} TO {value}" for name, value in PLANNER_SETTINGS.items()
)
"""The same of a function that others call, in sessions that are not ours."""
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
"""For after the end. Advisory locks of the session guard until its COMMIT; here they end."""
SAME_ENCODING = b"""SELECT CASE WHEN pg_catalog.current_setting('client_encoding') = 'UTF8' THEN 0
    ELSE ('ctx.write: a statement has changed client_encoding to '
        || pg_catalog.current_setting('client_encoding'))::integer END"""
"""Fails where a function has changed how the parameters behind it were read."""
NO_TABLES = b"SELECT 1 / (pg_catalog.pg_my_temp_schema() = 0)::integer"
"""Fails in a session with temporary tables: one may stand in the way of a table of that name."""
UNFLUSHED = b"SELECT pg_catalog.set_config('synchronous_commit', 'off', true)"
"""For a COMMIT that a flush follows at once, before anybody is told."""
FLUSH = b"SELECT pg_catalog.pg_logical_emit_message(true, 'tasks_app', '')"
"""Writes to the log, so that its own COMMIT flushes all that is before it."""
_LIMIT = "SELECT pg_catalog.set_config('statement_timeout', %(limit)s, true)"
_LONGEST_MS = 2**31 - 1  # what PostgreSQL's ``statement_timeout`` can be at most


def limit_statements(connection: Connection, limit_s: float) -> None:
    """Limit how long each may take, deferred triggers too, up to the reset before the settle."""
    limit_ms = min(max(1, ceil(limit_s * 1000)), _LONGEST_MS)
    connection.exec_driver_sql(_LIMIT, {"limit": str(limit_ms)})


def has_lock_timeout(connection: Connection) -> bool:
    """Tell whether its role, database or server limits how long it waits for a lock."""
    return bool(connection.exec_driver_sql("SHOW lock_timeout").scalar_one() != "0")
