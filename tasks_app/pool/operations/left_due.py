"""Left due: what is due in queues whose workers found nothing more to do, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import NOW, PENDING

MOST = 100_000
"""Rows that are looked at."""

# Parked rows have an index of their own; of the others, what the scan sees. A row that became due
# since the caller began, and is not parked, was not passed over: it came too late.
_LEFT = text(f"""
    SELECT d.queue, d.name, d.parked, count(*) AS number, min(d.id) AS first FROM (
        (SELECT p.id, p.queue, p.name, p.parked FROM {PENDING} p
         WHERE p.parked_kind IS NOT NULL AND p.state = '{State.PENDING}' AND p.due_at <= {NOW}
           AND p.queue = ANY(CAST(:queues AS text[])) LIMIT {MOST})
        UNION ALL
        (SELECT p.id, p.queue, p.name, NULL FROM unnest(CAST(:queues AS text[])) AS q(queue)
         CROSS JOIN generate_series(0, 9) AS r(priority)
         CROSS JOIN LATERAL (
            SELECT * FROM {PENDING} p
            WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
              AND p.scan_at <= {NOW} AND p.due_at <= CAST(:since AS timestamptz)
              AND p.parked IS NULL
            ORDER BY p.scan_at LIMIT {MOST}) AS p
         LIMIT {MOST})) AS d
    GROUP BY d.queue, d.name, d.parked ORDER BY number DESC, first
""")


@dataclass(frozen=True, slots=True)
class Left:
    """Due tasks of one name in one queue that wait for the same."""

    queue: str
    name: str
    parked: str | None
    """Why they stand aside; None: they do not."""
    number: int
    first: int
    """The lowest id."""


def left(
    connection: Connection, queues: Sequence[str], since: datetime, *, now: datetime | None = None
) -> list[Left]:
    """Return what is due, the most first; what is not parked only if it was due at ``since``."""
    values = {"queues": list(queues), "since": since, "now": now}
    return [Left(*row) for row in connection.execute(_LEFT, values)]
