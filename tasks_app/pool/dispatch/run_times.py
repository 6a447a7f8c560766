"""Pace: how much of a child's time a task of each name takes, as the children learned it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.pool.tables import NOW, PACE

_READ = text(f"SELECT name, run_s FROM {PACE} WHERE name = ANY(CAST(:names AS text[]))")
_WRITE = text(f"""
    INSERT INTO {PACE} (name, run_s, updated_at)
    SELECT l.name, l.run_s, {NOW}
    FROM unnest(CAST(:names AS text[]), CAST(:seconds AS double precision[])) AS l(name, run_s)
    ORDER BY l.name
    ON CONFLICT (name) DO UPDATE SET run_s = EXCLUDED.run_s, updated_at = EXCLUDED.updated_at
""")


def paces(connection: Connection, names: Collection[str]) -> dict[str, float]:
    """Return the seconds that are known."""
    return {row.name: row.run_s for row in connection.execute(_READ, {"names": list(names)})}


def learn(
    connection: Connection, seconds: Mapping[str, float], *, now: datetime | None = None
) -> None:
    """Write down what a child learned; the last one to learn is right."""
    values = {"names": list(seconds), "seconds": list(seconds.values()), "now": now}
    connection.execute(_WRITE, values)
