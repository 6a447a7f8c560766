"""Instances that ended long ago are deleted, with all that they left in our tables.

One that failed or was stopped stays, since it can go on; so does one that has tasks. Partitions
that people keep belong to no instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.config.retention import Keep
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.retention import ages
from tasks_app.pool.retention import too_old
from tasks_app.pool.tables import BATCH, BATCH_SKIP, NOW, PARTITION, PARTITION_VALUE, PENDING

ROWS = 2_000
"""Per statement: some ten milliseconds."""
_OVER = f"""b.status IN ('{BatchStatus.COMPLETED}', '{BatchStatus.ABANDONED}')
    AND NOT EXISTS (SELECT FROM {PENDING} t WHERE t.biz_key = 'batch:' || b.id)"""
_OLD = f"""
    b.ended_at < {NOW} - CAST(:shortest AS interval)
    AND {too_old("b.ended_at", "b.job")} AND {_OVER}"""
_FIND = text(f"""
    SELECT b.id FROM {BATCH} b WHERE b.id > :after AND {_OLD} ORDER BY b.id LIMIT :most
""")
_HOLD = text(f"SELECT b.id FROM {BATCH} b WHERE b.id = :id AND {_OVER} FOR UPDATE SKIP LOCKED")
_ITS_PARTITIONS = f"{PARTITION} p WHERE p.batch_id = :id AND p.program_id LIKE '%#%'"
_PARTS = tuple(
    text(f"""
    WITH chosen AS MATERIALIZED (SELECT {where} LIMIT :most)
    DELETE FROM {table} d WHERE d.ctid = ANY(ARRAY(SELECT place FROM chosen))
    """)
    for table, where in (
        (BATCH_SKIP, f"s.ctid AS place FROM {BATCH_SKIP} s WHERE s.batch_id = :id"),
        (
            PARTITION_VALUE,
            f"""v.ctid AS place FROM {PARTITION_VALUE} v
            JOIN {PARTITION} p USING (program_id, partition_no)
            WHERE p.batch_id = :id AND p.program_id LIKE '%#%'""",
        ),
        (PARTITION, f"p.ctid AS place FROM {_ITS_PARTITIONS}"),
    )
)
"""The largest first; the one that others refer to last."""
_DELETE = text(f"DELETE FROM {BATCH} b WHERE b.id = :id")
_COUNT = text(f"""
    SELECT count(*) AS n, sum(pg_column_size(b)
        + (SELECT coalesce(sum(pg_column_size(p)), 0) FROM {PARTITION} p WHERE p.batch_id = b.id)
        + (SELECT coalesce(sum(pg_column_size(s)), 0) FROM {BATCH_SKIP} s WHERE s.batch_id = b.id)
        ) AS b
    FROM {BATCH} b WHERE {_OLD}
""")


def too_old_ones(
    connection: Connection, keep: Keep, after: int, most: int, *, now: datetime | None = None
) -> list[int]:
    """Return ids above ``after`` that are old enough, lowest first."""
    if keep.shortest is None:
        return []
    values = {**ages(keep), "shortest": keep.shortest, "after": after, "most": most, "now": now}
    return list(connection.execute(_FIND, values).scalars())


def delete_some(connection: Connection, batch_id: int) -> bool | None:
    """Delete some rows of an instance, its own last; True: all are gone, False: more are left.

    None: it is locked, or not over any more, or the database refuses that.
    """

    def delete(_: Sequence[int]) -> bool | None:
        if connection.execute(_HOLD, {"id": batch_id}).first() is None:
            return None
        for part in _PARTS:
            if connection.execute(part, {"id": batch_id, "most": ROWS}).rowcount:
                return False
        connection.execute(_DELETE, {"id": batch_id})
        return True

    return next(iter(row_by_row(connection, [batch_id], delete, "pruning of batches")), None)


def count_old(
    connection: Connection, keep: Keep, *, now: datetime | None = None
) -> tuple[int, int]:
    """Return how many instances are old enough, and the bytes of all their rows."""
    if keep.shortest is None:
        return 0, 0
    row = connection.execute(_COUNT, {**ages(keep), "shortest": keep.shortest, "now": now}).one()
    return row.n, row.b or 0
