"""Upcoming: what becomes due soon, so that somebody can wake up for it. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.states import State
from tasks_app.pool.tables import NOW, PENDING

# One probe of the index per queue and priority. A parked row is none to wake up for; to look
# behind it would read all that are parked.
_NEXT = text(f"""
    SELECT EXTRACT(EPOCH FROM min(p.scan_at) - {NOW})
    FROM unnest(CAST(:queues AS text[])) AS q(queue)
    CROSS JOIN generate_series(0, 9) AS r(priority)
    CROSS JOIN LATERAL (
        SELECT p.scan_at, p.parked FROM {PENDING} p
        WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
          AND p.scan_at > {NOW} AND p.scan_at <= {NOW} + CAST(:within AS interval)
        ORDER BY p.scan_at, p.id LIMIT 1) AS p
    WHERE p.parked IS NULL
""")


def next_due_in(
    connection: Connection,
    queues: Sequence[str],
    within: timedelta,
    *,
    now: datetime | None = None,
) -> float | None:
    """Return in how many seconds the next row is to be looked at; None: none is ``within``."""
    values = {"queues": list(queues), "within": within, "now": now}
    seconds = connection.execute(_NEXT, values).scalar()
    return None if seconds is None else float(seconds)
