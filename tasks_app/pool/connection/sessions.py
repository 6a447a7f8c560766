"""What a handler left in its session: taken back before the settle, and looked for after the end.

``RESET`` works on what was set by whatever way, a function or the driver included, and costs less
than to look for it. It has to stand in the transaction, before the settle, which would meet a
search_path or a role; deferred triggers, which may read a setting, have their turn before that.
"""

from __future__ import annotations

from math import ceil

from sqlalchemy import Connection

FIRE = b"SET CONSTRAINTS ALL IMMEDIATE"
RESETS = (b"RESET SESSION AUTHORIZATION", b"RESET ROLE", b"RESET ALL")
RESET = b"; ".join(RESETS)
FIRE_AND_RESET = FIRE + b"; " + RESET

_LEFT = """pg_catalog.pg_my_temp_schema() <> 0
    OR EXISTS (SELECT FROM pg_catalog.pg_listening_channels())
    OR EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE is_holdable)
    OR EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE from_sql)"""
"""Temporary tables (a session that ever had one), channels, cursors, ``PREPARE``."""
LOOK = f"SELECT {_LEFT}, pg_catalog.pg_advisory_unlock_all()".encode()
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
_LONGEST_MS = 2**31 - 1
"""What PostgreSQL's ``statement_timeout`` can be at most."""


def limit_statements(connection: Connection, limit_s: float) -> None:
    """Limit how long each may take, deferred triggers too, up to the reset before the settle."""
    limit_ms = min(max(1, ceil(limit_s * 1000)), _LONGEST_MS)
    connection.exec_driver_sql(_LIMIT, {"limit": str(limit_ms)})


def limits_locks(connection: Connection) -> bool:
    """Tell whether its role, database or server limits how long it waits for a lock."""
    return bool(connection.exec_driver_sql("SHOW lock_timeout").scalar_one() != "0")
