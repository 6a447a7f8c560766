"""Hold: renew what is held or waited for, and guard what is written under it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.pool.tables import LOCK_HOLDER, NOW

_RENEW = text(f"""
    WITH ours AS MATERIALIZED (
        SELECT h.id FROM {LOCK_HOLDER} h WHERE h.token = ANY(CAST(:tokens AS uuid[]))
        ORDER BY h.id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {LOCK_HOLDER} h SET lease_until = {NOW} + CAST(:lease AS interval)
    FROM ours o WHERE h.id = o.id
""")
_THERE = text(f"SELECT token FROM {LOCK_HOLDER} WHERE token = ANY(CAST(:tokens AS uuid[]))")
_GUARD = text(f"""
    SELECT h.fence FROM {LOCK_HOLDER} h WHERE h.token = :token AND h.fence IS NOT NULL
    FOR KEY SHARE
""")


def renew(
    connection: Connection,
    tokens: Sequence[UUID],
    lease: timedelta,
    *,
    now: datetime | None = None,
) -> set[UUID]:
    """Extend the leases to ``lease`` from now; return the tokens that are lost.

    What somebody locks just now is passed over: he releases it, or is about to take it over.
    """
    values = {"tokens": list(tokens), "lease": lease, "now": now}
    connection.execute(_RENEW, values)
    return set(tokens) - set(connection.execute(_THERE, values).scalars())


def guard(connection: Connection, token: UUID) -> bool:
    """Keep the lock until the caller's transaction ends, whatever its lease says; False: lost.

    A renewal goes on meanwhile; whoever wants to take the lock over finds it held.
    """
    return connection.execute(_GUARD, {"token": token}).first() is not None
