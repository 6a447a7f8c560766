"""Prune: groups that were over long ago."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.pool.tables import GROUP, NOW

_PRUNE = text(f"""
    WITH old AS MATERIALIZED (
        SELECT g.id FROM {GROUP} g
        WHERE g.outcome IS NOT NULL AND g.counted_at < {NOW} - CAST(:older AS interval)
        ORDER BY g.id LIMIT :most FOR UPDATE SKIP LOCKED)
    DELETE FROM {GROUP} g WHERE g.id = ANY(ARRAY(SELECT id FROM old)) RETURNING g.id
""")


def prune(
    connection: Connection, older: timedelta, most: int, *, now: datetime | None = None
) -> int:
    """Delete groups that ended this long ago, without waiting for a lock; return their number."""
    return len(connection.execute(_PRUNE, {"older": older, "most": most, "now": now}).all())
