"""Whose turn it is to look for alerts: one row, taken by compare-and-set.

No duty of TASK_LEASE: who may watch, as a dashboard, need not be able to lead.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.pool.tables import ALERT_LOOK, NOW

_OPEN = f"""(l.held_until IS NULL OR l.held_until <= {NOW})
    AND (l.done_at IS NULL OR l.done_at <= {NOW} - CAST(:every AS interval))"""
# While somebody looks nothing is inserted, so nobody waits for the row.
_TAKE = text(f"""
    INSERT INTO {ALERT_LOOK} AS l (one, holder, token, held_until)
    SELECT true, :holder, :token, {NOW} + CAST(:ttl AS interval)
    WHERE NOT EXISTS (SELECT FROM {ALERT_LOOK} l WHERE NOT ({_OPEN}))
    ON CONFLICT (one) DO UPDATE SET holder = EXCLUDED.holder, token = EXCLUDED.token,
        held_until = EXCLUDED.held_until
    WHERE {_OPEN}
""")
_END = text(f"""
    UPDATE {ALERT_LOOK} SET done_at = {NOW}, held_until = NULL WHERE token = :token
""")


def take(
    connection: Connection,
    *,
    holder: str,
    token: UUID,
    every: timedelta,
    ttl: timedelta,
    now: datetime | None = None,
) -> bool:
    """False: somebody else looks, or did so within ``every``."""
    values = {"holder": holder, "token": token, "every": every, "ttl": ttl, "now": now}
    return connection.execute(_TAKE, values).rowcount > 0


def end(connection: Connection, token: UUID, *, now: datetime | None = None) -> bool:
    """Say that this look is done; False: another has begun since, so it must not be written down.

    Until the transaction ends, none can begin.
    """
    return connection.execute(_END, {"token": token, "now": now}).rowcount > 0
