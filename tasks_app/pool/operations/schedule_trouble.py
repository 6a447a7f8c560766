"""Schedules that were late, left instants out or are broken."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.pool.tables import FIRE, NOW, SCHEDULE

MOST = 50


@dataclass(frozen=True, slots=True)
class ScheduleTrouble:
    """A schedule, and what was wrong with it since an instant."""

    name: str
    fired: int
    late: int
    """Of these, those that fired late."""
    latest_s: float
    skipped: int
    last_outcome: str | None
    broken: bool
    late_now_s: float | None
    """How long ago it should have fired; None: it is in time."""


_TROUBLE = text(f"""
    SELECT * FROM (
        SELECT s.name, count(f.fire_at) AS fired,
            count(f.fire_at) FILTER (
                WHERE f.fired_at - f.fire_at > CAST(:patience AS interval)) AS late,
            CAST(coalesce(extract(epoch FROM max(f.fired_at - f.fire_at)), 0) AS float8)
                AS latest_s,
            count(f.fire_at) FILTER (WHERE f.outcome = 'skipped') AS skipped, s.last_outcome,
            s.enabled AND s.remark IS NOT NULL AS broken,
            CASE WHEN s.enabled AND s.next_run_at < {NOW} - CAST(:patience AS interval)
                THEN CAST(extract(epoch FROM {NOW} - s.next_run_at) AS float8) END AS late_now_s
        FROM {SCHEDULE} s LEFT JOIN {FIRE} f ON f.schedule_id = s.id AND f.fired_at >= :since
        GROUP BY s.id) AS t
    WHERE late > 0 OR skipped > 0 OR broken OR late_now_s IS NOT NULL OR last_outcome = 'missed'
    ORDER BY late_now_s DESC NULLS LAST, broken DESC, late DESC, name LIMIT {MOST}
""")


def schedule_trouble(
    connection: Connection, since: datetime, patience: timedelta, *, now: datetime | None = None
) -> list[ScheduleTrouble]:
    """Return at most MOST; less than ``patience`` is not late."""
    values = {"since": since, "patience": patience, "now": now}
    return [ScheduleTrouble(*row) for row in connection.execute(_TROUBLE, values)]
