"""Schedules: a page of them by filters, and what became of their last instants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.domain.tasks.states import Pool
from tasks_app.pool.schedules.schedules import COLUMNS, record
from tasks_app.pool.tables import COMPLETED, ERROR, FIRE, PENDING, SCHEDULE

MOST = 10_000
"""Schedules that are counted."""

_ENABLED = {
    "yes": "s.enabled AND s.remark IS NULL",
    "no": "NOT s.enabled",
    "broken": "s.enabled AND s.remark IS NOT NULL",
}
STANDINGS = tuple(_ENABLED)
_FITS = f"""
    (CAST(:queue AS text) IS NULL OR s.queue = :queue)
    AND (CAST(:text AS text) IS NULL OR strpos(lower(s.name), lower(:text)) > 0
        OR strpos(lower(s.task), lower(:text)) > 0)
    AND CASE CAST(:enabled AS text)
        {" ".join(f"WHEN '{word}' THEN {fits}" for word, fits in _ENABLED.items())}
        ELSE true END
"""
_FIND = text(f"""
    SELECT {COLUMNS} FROM {SCHEDULE} s
    WHERE {_FITS} AND (CAST(:after AS text) IS NULL OR s.name > :after)
    ORDER BY s.name LIMIT :most
""")
_COUNT = text(f"""
    SELECT count(*) FROM (SELECT FROM {SCHEDULE} s WHERE {_FITS} LIMIT {MOST + 1}) AS s
""")
# A task ends after it was made: days before that are not opened.
_FIRES = text(f"""
    SELECT u.id AS schedule_id, f.fire_at, f.fired_at, f.outcome, f.task_id, (
        SELECT t.state FROM (
            SELECT p.state FROM {PENDING} p WHERE p.id = f.task_id
            UNION ALL SELECT e.state FROM {ERROR} e WHERE e.id = f.task_id
            UNION ALL SELECT c.state FROM {COMPLETED} c
                WHERE c.id = f.task_id AND c.finished_at >= f.fired_at) AS t LIMIT 1) AS state
    FROM unnest(CAST(:ids AS bigint[])) AS u(id)
    CROSS JOIN LATERAL (
        SELECT * FROM {FIRE} f WHERE f.schedule_id = u.id
        ORDER BY f.fire_at DESC LIMIT :each) AS f
    ORDER BY u.id, f.fire_at
""")
_OF_TASK = {
    pool: text(f"""
        SELECT s.name FROM {table} t JOIN {SCHEDULE} s ON s.id = t.schedule_id WHERE t.id = :id
    """)
    for pool, table in (
        (Pool.PENDING, PENDING),
        (Pool.ERROR, ERROR),
        (Pool.COMPLETED, COMPLETED),
    )
}


@dataclass(frozen=True, slots=True)
class Fire:
    """What became of one instant."""

    fire_at: datetime
    fired_at: datetime
    outcome: str
    task_id: int | None
    state: str | None
    """Of its task; None: there is none, or it was pruned."""

    @property
    def late_s(self) -> float:
        return max(0.0, (self.fired_at - self.fire_at).total_seconds())


def find(
    connection: Connection, filters: dict[str, str], *, after: str | None, most: int
) -> list[Schedule]:
    """Return those that fit, by name; ``after`` is the name to go on behind."""
    values = {**_values(filters), "after": after, "most": most}
    return [record(row) for row in connection.execute(_FIND, values)]


def count(connection: Connection, filters: dict[str, str]) -> int:
    """Return how many fit, or one more than MOST."""
    return int(connection.execute(_COUNT, _values(filters)).scalar_one())


def fires(connection: Connection, ids: Sequence[int], each: int) -> dict[int, list[Fire]]:
    """Return the last instants of each schedule, the oldest of them first."""
    found: dict[int, list[Fire]] = {}
    for row in connection.execute(_FIRES, {"ids": list(ids), "each": each}):
        found.setdefault(row.schedule_id, []).append(Fire(*row[1:]))
    return found


def of_task(connection: Connection, pool: str, task_id: int) -> str | None:
    """Return the name of the schedule that made a task, if it still exists."""
    return connection.execute(_OF_TASK[Pool(pool)], {"id": task_id}).scalar()


def _values(filters: dict[str, str]) -> dict[str, str | None]:
    return {name: filters.get(name) for name in ("enabled", "queue", "text")}
