"""Retire: whole days of the completed pool go, without a DELETE.

In three steps, each of which may be the last for a while: the partition is detached, under a lock
that is waited for so briefly that settles behind it hardly notice; then it is nobody's but ours,
and the history of its tasks is deleted, some at a time; then it is dropped.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.pool.retention.partitions import DayPartition, Mark, remember
from tasks_app.pool.retention import DEFAULT
from tasks_app.pool.retention import LOOKED_AT
from tasks_app.pool.tables import ATTEMPT, COMPLETED, LARGE_VALUE, LOG_LINES, table

LOCK_WAIT = "100ms"
"""DETACH takes the whole table for itself: while it waits for who is in there, settles wait for it.
CONCURRENTLY would not, but is refused where there is a default partition."""


def detach(connection: Connection, partition: DayPartition, *, lock_wait: str = LOCK_WAIT) -> None:
    """Take a day out of the pool, in a transaction of its own.

    Readers of the old day itself are waited for first: nobody settles into it. While the parent is
    waited for, and for the moment of the change, all others wait behind.

    Raises:
        sqlalchemy.exc.OperationalError: the table is in use. Try again later.
    """
    connection.execute(text(f"SET LOCAL lock_timeout = '{lock_wait}'"))
    connection.execute(text(f"LOCK TABLE {table(partition.name)} IN ACCESS EXCLUSIVE MODE"))
    connection.execute(text(f"LOCK TABLE {DEFAULT} IN ACCESS EXCLUSIVE MODE"))
    remember(connection, partition, Mark(detached=True))
    connection.execute(text(f"ALTER TABLE {COMPLETED} DETACH PARTITION {table(partition.name)}"))


def forget_history(
    connection: Connection, partition: DayPartition, after: int, *, most: int = LOOKED_AT
) -> int | None:
    """Delete what is kept beside ``most`` tasks of a detached day; None: that was all.

    Else the id to go on after.
    """
    step = connection.execute(text(history_of(partition)), {"after": after, "most": most}).one()
    if step.seen < most:
        return None
    remember(connection, partition, Mark(detached=True, after=step.after))
    return int(step.after)


def drop(connection: Connection, partition: DayPartition) -> None:
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'"))
    connection.execute(text(f"DROP TABLE {table(partition.name)}"))


def history_of(partition: DayPartition) -> str:
    return f"""
    WITH looked AS MATERIALIZED (
        SELECT c.id, (c.attempt > 1 OR c.failures > 0 OR c.crashes > 0 OR c.error IS NOT NULL)
            AS told
        FROM {table(partition.name)} c WHERE c.id > :after ORDER BY c.id LIMIT :most),
    history AS (
        DELETE FROM {ATTEMPT} a WHERE a.task_id = ANY(ARRAY(SELECT id FROM looked WHERE told))),
    said AS (DELETE FROM {LOG_LINES} l WHERE l.task_id = ANY(ARRAY(SELECT id FROM looked))),
    large AS (DELETE FROM {LARGE_VALUE} v WHERE v.task_id = ANY(ARRAY(SELECT id FROM looked)))
    SELECT count(*) AS seen, max(id) AS after FROM looked
    """
