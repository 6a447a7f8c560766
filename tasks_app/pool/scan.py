"""Scan: which rows are due, in the order in which they shall run. Reads only.

Each pass starts from the front of the index: a watermark would miss rows that commit late. One
probe per priority keeps it cheap when millions of rows wait for a later day, on any version.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.states import State
from tasks_app.pool.tables import NOW, PENDING


@dataclass(frozen=True, slots=True)
class DueTask:
    """A row that the scan found."""

    id: int
    name: str
    scan_at: datetime
    may_run: bool
    """False: disabled or expired; to be swept."""


_DUE = text(f"""
    SELECT p.id, p.name, p.scan_at,
        p.enabled AND (p.expires_at IS NULL OR p.expires_at > {NOW}) AS may_run
    FROM generate_series(0, 9) AS r(priority)
    CROSS JOIN LATERAL (
        SELECT * FROM {PENDING} p
        WHERE p.queue = :queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
          AND p.scan_at <= {NOW}
        ORDER BY p.scan_at, p.id LIMIT :most) AS p
    ORDER BY p.priority, p.scan_at, p.id LIMIT :most
""")


def due(
    connection: Connection, queue: str, most: int, *, now: datetime | None = None
) -> list[DueTask]:
    """Return up to ``most`` due rows of the queue: by priority, then scan_at, then id."""
    rows = connection.execute(_DUE, {"queue": queue, "most": most, "now": now})
    return [DueTask(row.id, row.name, row.scan_at, row.may_run) for row in rows]
