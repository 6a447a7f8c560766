"""Prune: holders that are gone, and what nobody has asked for lately."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.pool.locks import OVER
from tasks_app.pool.tables import LOCK, LOCK_HOLDER, LOCK_PART, LOCK_WAIT, NOW

GONE_FOR = timedelta(minutes=10)
"""No holder comes back this long after the end of its lease. Until then a lock that nobody else
wants stays its holder's."""
FORGET_AFTER = timedelta(days=7)

_HOLDERS = text(f"""
    WITH gone AS MATERIALIZED (
        SELECT h.id FROM {LOCK_HOLDER} h
        WHERE h.lease_until <= {NOW} - CAST(:gone_for AS interval) OR {OVER}
        ORDER BY h.id LIMIT :most FOR UPDATE OF h SKIP LOCKED)
    DELETE FROM {LOCK_HOLDER} h USING gone g WHERE h.id = g.id RETURNING h.id
""")
_WAITS = text(f"""
    WITH old AS MATERIALIZED (
        SELECT w.ctid FROM {LOCK_WAIT} w
        WHERE w.ended_at < {NOW} - CAST(:forget_after AS interval)
        LIMIT :most FOR UPDATE OF w SKIP LOCKED)
    DELETE FROM {LOCK_WAIT} w USING old o WHERE w.ctid = o.ctid RETURNING 1
""")
_UNUSED = text(f"""
    SELECT r.resource FROM {LOCK} r
    WHERE r.used_at < {NOW} - CAST(:forget_after AS interval) AND r.most IS NULL
    LIMIT :most FOR UPDATE OF r SKIP LOCKED
""")
_RESOURCES = text(f"""
    DELETE FROM {LOCK} r WHERE r.resource = ANY(CAST(:resources AS text[]))
      AND NOT EXISTS (SELECT FROM {LOCK_PART} p WHERE p.resource = r.resource)
    RETURNING r.resource
""")


def prune(connection: Connection, most: int, *, now: datetime | None = None) -> int:
    """Remove up to ``most`` of each kind; return the number of the most frequent kind.

    Resources are locked first and looked at then: who was granted one meanwhile keeps it.
    """
    values = {"most": most, "gone_for": GONE_FOR, "forget_after": FORGET_AFTER, "now": now}
    holders = len(connection.execute(_HOLDERS, values).all())
    waits = len(connection.execute(_WAITS, values).all())
    unused = connection.execute(_UNUSED, values).scalars().all()
    resources = connection.execute(_RESOURCES, {"resources": list(unused)}).all() if unused else []
    return max(holders, waits, len(resources))
