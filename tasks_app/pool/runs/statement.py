"""The statement of a task in SQL, in the transaction of its run."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from sqlalchemy import Connection

_LIMIT = "SELECT pg_catalog.set_config('statement_timeout', %(limit)s, true)"
LONGEST_MS = 2**31 - 1
"""What PostgreSQL's ``statement_timeout`` can be at most."""


def carry_out(
    connection: Connection, statement: str, values: Mapping[str, str | None], limit_s: float | None
) -> int | None:
    """Execute it for at most ``limit_s`` seconds; return the number of rows, None: it has none.

    The limit stays for triggers that are deferred, and is reset before the settle, with all that a
    run has set.
    """
    if limit_s is not None:
        limit_ms = min(max(1, ceil(limit_s * 1000)), LONGEST_MS)
        connection.exec_driver_sql(_LIMIT, {"limit": str(limit_ms)})
    rows = connection.exec_driver_sql(statement, dict(values)).rowcount
    return None if rows < 0 else rows
