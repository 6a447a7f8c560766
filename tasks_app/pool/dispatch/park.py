"""Park: rows that cannot run now stand aside for a short, fixed time, with a visible reason.

Otherwise they would stand at the head of the index and be looked at in every scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import Event
from tasks_app.pool.tables import NOW, PENDING, admits_by_id

_PARK = text(f"""
    WITH aside AS MATERIALIZED (
        SELECT p.id FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.EXPIRE)}
          AND p.scan_at <= {NOW}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {PENDING} p
    SET scan_at = greatest({NOW}, p.due_at) + CAST(:wait AS interval), parked = :reason
    WHERE p.id = ANY(ARRAY(SELECT id FROM aside))
""")


def park(
    connection: Connection,
    ids: Sequence[int],
    reason: str,
    wait: timedelta,
    *,
    now: datetime | None = None,
) -> None:
    """Hide due rows from the scan for ``wait``. ``due_at`` stays: a worker may still claim them."""
    connection.execute(
        _PARK, {"ids": sorted(map(int, ids)), "reason": reason, "wait": wait, "now": now}
    )
