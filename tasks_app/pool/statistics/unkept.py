"""Successes that left no row: how many, of which names."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.statistics.unkept import MOST_NAMES, UNKEPT_WITHIN, Unkept
from tasks_app.pool.tables import COUNT, COUNT_PART, NOW

DAY, MINUTE = 1440, 1
_CHOSEN = f"""c.outcome = {CountedOutcome.UNKEPT:d}
    AND (CAST(:name AS text) IS NULL OR c.name = :name)
    AND (CAST(:queue AS text) IS NULL OR c.queue = :queue)"""
_DAYS = f"""
    SELECT c.name, c.number FROM {COUNT} c
    WHERE c.span = {DAY} AND c.at > {NOW} - CAST(:within AS interval) AND {_CHOSEN}"""
_LIVE = f"""
    SELECT c.name, c.number FROM {COUNT_PART} c
    WHERE {_CHOSEN} AND c.at >
        coalesce((SELECT max(at) FROM {COUNT} WHERE span = {MINUTE}), '-infinity')"""


def _sums(source: str) -> TextClause:
    return text(f"""
        SELECT u.name, CAST(sum(u.number) AS bigint) AS number FROM ({source}) AS u
        GROUP BY 1 ORDER BY 2 DESC, 1
    """)


_ALL, _WITHOUT_LIVE = _sums(f"{_DAYS} UNION ALL {_LIVE}"), _sums(_DAYS)
_STANDBY = text("SELECT pg_is_in_recovery()")


def unkept(
    connection: Connection,
    *,
    name: str | None = None,
    queue: str | None = None,
    now: datetime | None = None,
) -> Unkept | None:
    """Count them, of all, of a name or of a queue; None: all successes have their rows.

    On a standby server without those of the last minutes: their parts are not logged.
    """
    standby = connection.execute(_STANDBY).scalar_one()
    values = {"name": name, "queue": queue, "within": UNKEPT_WITHIN, "now": now}
    rows = connection.execute(_WITHOUT_LIVE if standby else _ALL, values).all()
    if not rows:
        return None
    names = tuple(row.name for row in rows[:MOST_NAMES])
    return Unkept(sum(row.number for row in rows), names, len(rows) > MOST_NAMES)
