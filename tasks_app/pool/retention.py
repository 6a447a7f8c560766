"""Prune: rows that are too old are deleted by key, some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.config.retention import Keep
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.retention.partitions import DayPartition, Mark, remember
from tasks_app.pool.tables import ATTEMPT, ERROR, LARGE_VALUE, LOG_LINES, NOW, table

LOOKED_AT = 5_000
"""Rows per statement: some ten milliseconds."""
DEFAULT = table("task_completed_default")


def too_old(at: str, name: str) -> str:
    """Return the condition that what ended ``at`` is older than its ``name`` may be; see ages()."""
    return f"""
    {at} < {NOW} - CASE WHEN {name} = ANY(CAST(:names AS text[]))
        THEN (CAST(:ages AS interval[]))[array_position(CAST(:names AS text[]), {name})]
        ELSE CAST(:age AS interval) END
"""


_OLD = too_old("t.finished_at", "t.name")


def thin(
    connection: Connection, partition: DayPartition, mark: Mark, *, most: int = LOOKED_AT
) -> tuple[Mark, int]:
    """Delete tasks of ``mark.names`` among the next ``most`` rows of a day that stays.

    Return the mark to go on with, written down already, and how many rows went.
    """
    values = {"after": mark.after, "most": most, "names": list(mark.names)}
    step = connection.execute(_looked_through(partition), values).one()
    gone = _delete(connection, table(partition.name), step.ids)
    if step.seen < most:
        mark = Mark(done=tuple(sorted({*mark.done, *mark.names})))
    else:
        mark = Mark(after=step.after, names=mark.names, done=mark.done)
    remember(connection, partition, mark)
    return mark, gone


Place = tuple[datetime, int]
"""Where a pass over rows by their age has come to."""


def delete_old(
    connection: Connection,
    pool: str,
    keep: Keep,
    after: Place | None = None,
    *,
    most: int = LOOKED_AT,
    now: datetime | None = None,
) -> tuple[Place | None, int]:
    """Delete what is too old among the next rows of the error pool, or of the default partition.

    Return the place to go on after, None when that was all, and how many rows went. Rows that
    somebody holds, to requeue them perhaps, are left for the next pass.
    """
    if keep.shortest is None:
        return None, 0
    values = {**ages(keep), "most": most, "now": now, "shortest": keep.shortest}
    at, task_id = after or (datetime(1900, 1, 1, tzinfo=UTC), 0)
    step = connection.execute(_OLD_OF[pool], {**values, "after_at": at, "after_id": task_id}).one()
    gone = _delete(connection, pool, step.ids, "SKIP LOCKED")  # the next pass comes to these
    return (None if step.seen < most else (step.at, step.after)), gone


def take_time(connection: Connection) -> None:
    """Let the counts of this transaction take as long as they do."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))


def count_in(connection: Connection, partition: DayPartition, name: str = "") -> tuple[int, int]:
    """Return rows and bytes of a day, or of one name in it. Reads all of them."""
    row = connection.execute(
        text(f"""
            SELECT count(*) AS n, sum(pg_column_size(t)) AS b FROM {table(partition.name)} t
            WHERE :name IN ('', t.name)
        """),
        {"name": name},
    ).one()
    return row.n, row.b or 0


def count_old(
    connection: Connection, pool: str, keep: Keep, *, now: datetime | None = None
) -> tuple[int, int]:
    """Return rows and bytes of the error pool, or the default partition, that are too old."""
    if keep.shortest is None:
        return 0, 0
    row = connection.execute(
        text(f"SELECT count(*) AS n, sum(pg_column_size(t)) AS b FROM {pool} t WHERE {_OLD}"),
        {**ages(keep), "now": now},
    ).one()
    return row.n, row.b or 0


def _looked_through(partition: DayPartition) -> TextClause:
    return text(f"""
    SELECT count(*) AS seen, max(id) AS after,
        array_agg(id) FILTER (WHERE name = ANY(CAST(:names AS text[]))) AS ids
    FROM (SELECT c.id, c.name FROM {table(partition.name)} c
          WHERE c.id > :after ORDER BY c.id LIMIT :most) AS looked
    """)


def _by_age(pool: str) -> TextClause:
    return text(f"""
    SELECT count(*) AS seen, max(finished_at) AS at,
        (array_agg(id ORDER BY finished_at DESC, id DESC))[1] AS after,
        array_agg(id) FILTER (WHERE old) AS ids
    FROM (SELECT t.id, t.finished_at, coalesce({_OLD}, false) AS old FROM {pool} t
          WHERE (t.finished_at, t.id) > (:after_at, :after_id)
            AND t.finished_at < {NOW} - CAST(:shortest AS interval)
          ORDER BY t.finished_at, t.id LIMIT :most) AS looked
    """)


_OLD_OF = {pool: _by_age(pool) for pool in (ERROR, DEFAULT)}


def _delete(connection: Connection, pool: str, ids: Sequence[int] | None, locked: str = "") -> int:
    """Delete rows, and what is kept of them; say how many. ``locked``: how to take held ones."""
    statement = text(f"""
    WITH held AS MATERIALIZED (
        SELECT t.id FROM {pool} t WHERE t.id = ANY(CAST(:ids AS bigint[]))
        ORDER BY t.id FOR UPDATE {locked}),
    gone AS (DELETE FROM {pool} t WHERE t.id = ANY(ARRAY(SELECT id FROM held)) RETURNING t.id),
    history AS (DELETE FROM {ATTEMPT} a WHERE a.task_id = ANY(ARRAY(SELECT id FROM gone))),
    said AS (DELETE FROM {LOG_LINES} l WHERE l.task_id = ANY(ARRAY(SELECT id FROM gone))),
    large AS (DELETE FROM {LARGE_VALUE} v WHERE v.task_id = ANY(ARRAY(SELECT id FROM gone)))
    SELECT count(*) FROM gone
    """)

    def delete(some: Sequence[int]) -> int:
        return int(connection.execute(statement, {"ids": list(some)}).scalar_one())

    return sum(row_by_row(connection, ids or (), delete, f"pruning of {pool}"))


def ages(keep: Keep) -> dict[str, Any]:
    """Return the parameters of that condition."""
    return {"names": list(keep.names), "ages": list(keep.names.values()), "age": keep.age}
