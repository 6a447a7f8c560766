"""Next in line: a task that leaves its place in the line of an order key lets the next one try."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.waiting_reason import WaitingKind
from tasks_app.domain.tasks.states import State
from tasks_app.domain.text_array import text_array
from tasks_app.pool.fragments.parked import UNPARKED
from tasks_app.pool.tables import NOW, PENDING

# No gate is locked: the caller's transaction may stay open, and claims would wait for it.
_NEXT = text(f"""
    WITH next AS MATERIALIZED (
        SELECT n.id FROM unnest(CAST(:keys AS text[])) AS k(key)
        CROSS JOIN LATERAL (
            SELECT p.id FROM {PENDING} p
            WHERE p.order_key = k.key AND p.state = '{State.PENDING}'
              AND p.parked_kind = '{WaitingKind.ORDER}'
            ORDER BY p.id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS n)
    UPDATE {PENDING} p SET scan_at = greatest({NOW}, p.due_at), {UNPARKED}
    WHERE p.id = ANY(ARRAY(SELECT id FROM next))
""")


def look_at_next(
    connection: Connection, keys: Collection[str], *, now: datetime | None = None
) -> None:
    """Let the scan look at the first task that waits for each order key."""
    if keys:
        connection.execute(_NEXT, {"keys": text_array(keys), "now": now})
