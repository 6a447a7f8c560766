"""Sweep: due rows that must not run leave the pool: disabled ones SKIPPED, late ones EXPIRED."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from tasks_app.domain.states import Event, State
from tasks_app.pool.moves import AS_IT_WAS, SKIP_LOCKED, leave
from tasks_app.pool.tables import NOW, PENDING, admits, admits_by_id

_SWEEP = leave(f"""
    SELECT {AS_IT_WAS},
        CASE WHEN NOT p.enabled THEN '{State.SKIPPED}' ELSE '{State.EXPIRED}' END AS goes_to,
        p.due_at AS back_at, p.failures, p.crashes, p.retry_level, NULL::jsonb AS result,
        CASE WHEN NOT p.enabled THEN 'disabled' ELSE 'expired' END AS kind,
        CASE WHEN NOT p.enabled THEN 'The task was disabled when it became due.'
             ELSE 'The task became due, or was to be tried again, after its expires_at.' END
            AS message,
        NULL AS traceback, NULL::integer AS run_ms, NULL AS event
    FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND p.due_at <= {NOW}
      AND (NOT p.enabled AND {admits(Event.SKIP)}
           OR p.expires_at <= {NOW} AND {admits(Event.EXPIRE)})
      AND {admits_by_id(Event.EXPIRE)}
    ORDER BY p.id {SKIP_LOCKED}
""")


def sweep(
    connection: Connection, ids: Sequence[int], *, now: datetime | None = None
) -> dict[int, State]:
    """Move those of ``ids`` that must not run; return where each went."""
    rows = connection.execute(_SWEEP, {"ids": sorted(map(int, ids)), "now": now})
    return {row.id: State(row.goes_to) for row in rows}
