"""What the tables take, what keeps vacuum from them, and how far partitions reach."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.pool.tables import (
    ATTEMPT,
    AUDIT,
    BATCH_SKIP,
    COMPLETED,
    ERROR,
    GATE,
    GROUP_IDS,
    KEY,
    LOG_LINES,
    NOW,
    PARTITION,
    PENDING,
    PROGRESS,
    TRANSITION,
)

GROWING = tuple(
    name.rpartition(".")[2]
    for name in (
        *(PENDING, COMPLETED, ERROR, ATTEMPT, TRANSITION, LOG_LINES, KEY, GATE),
        *(AUDIT, PROGRESS, GROUP_IDS, PARTITION, BATCH_SKIP),
    )
)
"""Tables that grow with the number of tasks; each size costs the server a few calls on files."""
# A partitioned table has no file of its own: its partitions are counted for it.
_SIZES = text("""
    SELECT t.name, sum(pg_table_size(c.oid)) AS table_bytes, sum(pg_indexes_size(c.oid)) AS indexes,
        sum(greatest(c.reltuples, 0)) AS rows, sum(pg_stat_get_dead_tuples(c.oid)) AS dead
    FROM pg_class home
    CROSS JOIN unnest(CAST(:names AS text[])) AS t(name)
    JOIN pg_class root ON root.relname = t.name AND root.relnamespace = home.relnamespace
    CROSS JOIN LATERAL (
        SELECT root.oid UNION ALL SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = root.oid
    ) AS every(oid)
    JOIN pg_class c ON c.oid = every.oid
    WHERE home.oid = CAST(:pending AS regclass)
    GROUP BY t.name ORDER BY t.name
""")
_SNAPSHOT = text("""
    SELECT coalesce(max(age(x.held)), 0) FROM (
        SELECT backend_xmin AS held FROM pg_stat_activity WHERE pid <> pg_backend_pid()
        UNION ALL SELECT transaction FROM pg_prepared_xacts
        UNION ALL SELECT xmin FROM pg_replication_slots) AS x
""")
# Counted from today on: a gap ends it, though there may be partitions behind.
_HORIZON = text(f"""
    WITH today AS (SELECT ({NOW} AT TIME ZONE 'UTC')::date AS day)
    SELECT min(n) - 1 FROM today CROSS JOIN generate_series(0, :most) AS n
    WHERE 'task_completed_p' || to_char(day + n, 'YYYYMMDD') <> ALL (
        ARRAY(SELECT CAST(c.relname AS text) FROM pg_inherits i
              JOIN pg_class c ON c.oid = i.inhrelid
              WHERE i.inhparent = CAST(:parent AS regclass)))
""")
FARTHEST = 366


@dataclass(frozen=True, slots=True)
class Size:
    """A table with all its partitions; rows are the server's estimate."""

    table: str
    table_bytes: int
    index_bytes: int
    rows: float
    dead: int


def sizes(connection: Connection) -> list[Size]:
    values = {"names": list(GROWING), "pending": PENDING}
    return [Size(*row) for row in connection.execute(_SIZES, values)]


def snapshot_age(connection: Connection) -> int:
    """Return how many transactions ago the oldest snapshot that somebody holds was taken."""
    return int(connection.execute(_SNAPSHOT).scalar_one())


def horizon(connection: Connection, *, now: datetime | None = None) -> int:
    """Return for how many days after today there are partitions; -1: not even for today."""
    values = {"now": now, "most": FARTHEST, "parent": COMPLETED}
    found = connection.execute(_HORIZON, values).scalar()
    return FARTHEST if found is None else int(found)
