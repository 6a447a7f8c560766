"""Retention: deletes old rows; creates and drops the completed pool's daily partitions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.config.retention import Keep
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.tables import (
    ATTEMPT,
    COMPLETED,
    ERROR,
    FLOW_STEP,
    LARGE_VALUE,
    LOG_LINES,
    NOW,
    TRANSITION,
    Clock,
    table,
)

LOOKED_AT = 5_000  # rows per statement: some ten milliseconds
DEFAULT = table("task_completed_default")
# A flow keeps the results of its steps; when it has gone, the sweep of large values removes them.
_FREE = f"NOT EXISTS (SELECT FROM {FLOW_STEP} s WHERE s.task_id = v.task_id OFFSET 0)"


def too_old(at: str, name: str) -> str:
    """Return the condition that ``at`` is longer ago than ``name`` is kept; values: ages()."""
    return f"""
    {at} < {NOW} - CASE WHEN {name} = ANY(CAST(:names AS text[]))
        THEN (CAST(:ages AS interval[]))[array_position(CAST(:names AS text[]), {name})]
        ELSE CAST(:age AS interval) END
"""


def ages(keep: Keep) -> dict[str, Any]:
    return {"names": list(keep.names), "ages": list(keep.names.values()), "age": keep.age}


_OLD = too_old("t.finished_at", "t.name")


def thin_partition(
    connection: Connection, partition: DayPartition, mark: Mark, *, most: int = LOOKED_AT
) -> tuple[Mark, int]:
    """Delete tasks of ``mark.names`` among the next ``most`` rows of a day that stays."""
    # Return the next mark, which is saved already, and how many rows were deleted.
    page = text(f"""
    SELECT count(*) AS seen, max(id) AS after,
        array_agg(id) FILTER (WHERE name = ANY(CAST(:names AS text[]))) AS ids
    FROM (SELECT c.id, c.name FROM {table(partition.name)} c
          WHERE c.id > :after ORDER BY c.id LIMIT :most) AS looked""")
    values = {"after": mark.after, "most": most, "names": list(mark.names)}
    step = connection.execute(page, values).one()
    gone = _delete(connection, table(partition.name), step.ids)
    if step.seen < most:
        mark = Mark(done=tuple(sorted({*mark.done, *mark.names})))
    else:
        mark = Mark(after=step.after, names=mark.names, done=mark.done)
    save_mark(connection, partition, mark)
    return mark, gone


Place = tuple[datetime, int]  # finished_at and id of the last row that a pass by age has read


def _by_age(pool: str) -> TextClause:
    return text(f"""
    SELECT count(*) AS seen, max(finished_at) AS at,
        (array_agg(id ORDER BY finished_at DESC, id DESC))[1] AS after,
        array_agg(id) FILTER (WHERE old) AS ids
    FROM (SELECT t.id, t.finished_at, coalesce({_OLD}, false) AS old FROM {pool} t
          WHERE (t.finished_at, t.id) > (:after_at, :after_id)
            AND t.finished_at < {NOW} - CAST(:shortest AS interval)
          ORDER BY t.finished_at, t.id LIMIT :most) AS looked""")


_OLD_OF = {pool: _by_age(pool) for pool in (ERROR, DEFAULT)}


def delete_old(
    connection: Connection,
    pool: str,
    keep: Keep,
    after: Place | None = None,
    *,
    most: int = LOOKED_AT,
    now: Clock = None,
) -> tuple[Place | None, int]:
    """Delete old rows among the next ones of the error pool, or of the default partition."""
    # Return the place to go on after, None at the end, and how many rows were deleted. Locked
    # rows, perhaps to be requeued, are left for the next pass.
    if keep.shortest is None:
        return None, 0
    values = {**ages(keep), "most": most, "now": now, "shortest": keep.shortest}
    at, task_id = after or (datetime(1900, 1, 1, tzinfo=UTC), 0)
    step = connection.execute(_OLD_OF[pool], {**values, "after_at": at, "after_id": task_id}).one()
    gone = _delete(connection, pool, step.ids, "SKIP LOCKED")
    return (None if step.seen < most else (step.at, step.after)), gone


def lift_statement_timeout(connection: Connection) -> None:
    connection.execute(text("SET LOCAL statement_timeout = 0"))


def count_day(connection: Connection, partition: DayPartition, name: str = "") -> tuple[int, int]:
    """Return rows and bytes of a day, or of one name in it. Reads all of them."""
    return _count(connection, table(partition.name), ":name IN ('', t.name)", {"name": name})


def count_old(
    connection: Connection, pool: str, keep: Keep, *, now: Clock = None
) -> tuple[int, int]:
    """Return rows and bytes of the error pool, or the default partition, that are too old."""
    if keep.shortest is None:
        return 0, 0
    return _count(connection, pool, _OLD, {**ages(keep), "now": now})


def _count(connection: Connection, of: str, which: str, values: dict[str, Any]) -> tuple[int, int]:
    counted = f"SELECT count(*), coalesce(sum(pg_column_size(t)), 0) FROM {of} t WHERE {which}"
    rows, size = connection.execute(text(counted), values).one()
    return rows, size


def _delete(connection: Connection, pool: str, ids: Sequence[int] | None, locked: str = "") -> int:
    """Delete rows with their history, log lines and values; ``locked``: SKIP LOCKED, or wait."""
    statement = text(f"""
    WITH held AS MATERIALIZED (
        SELECT t.id FROM {pool} t WHERE t.id = ANY(CAST(:ids AS bigint[]))
        ORDER BY t.id FOR UPDATE {locked}),
    gone AS (DELETE FROM {pool} t WHERE t.id = ANY(ARRAY(SELECT id FROM held)) RETURNING t.id),
    history AS (DELETE FROM {ATTEMPT} a WHERE a.task_id = ANY(ARRAY(SELECT id FROM gone))),
    said AS (DELETE FROM {LOG_LINES} l WHERE l.task_id = ANY(ARRAY(SELECT id FROM gone))),
    large AS (
        DELETE FROM {LARGE_VALUE} v WHERE v.task_id = ANY(ARRAY(SELECT id FROM gone)) AND {_FREE})
    SELECT count(*) FROM gone""")

    def delete(some: Sequence[int]) -> int:
        return int(connection.execute(statement, {"ids": list(some)}).scalar_one())

    return sum(row_by_row(connection, ids or (), delete, f"pruning of {pool}"))


LOCK_WAIT = "100ms"
"""DETACH locks the whole table: while it waits for transactions there, settles wait for it.
CONCURRENTLY would not, but is refused if there is a default partition."""


def detach_partition(
    connection: Connection, partition: DayPartition, *, lock_wait: str = LOCK_WAIT
) -> None:
    """Detach a day from the pool, in its own transaction.

    This waits first for readers of the old day, into which no task is settled. While it waits for
    the parent, and during the change, all others wait behind it.

    Raises:
        sqlalchemy.exc.OperationalError: the table is in use. Try again later.
    """
    connection.execute(text(f"SET LOCAL lock_timeout = '{lock_wait}'"))
    connection.execute(text(f"LOCK TABLE {table(partition.name)} IN ACCESS EXCLUSIVE MODE"))
    connection.execute(text(f"LOCK TABLE {DEFAULT} IN ACCESS EXCLUSIVE MODE"))
    save_mark(connection, partition, Mark(detached=True))
    connection.execute(text(f"ALTER TABLE {COMPLETED} DETACH PARTITION {table(partition.name)}"))


def forget_history(
    connection: Connection, partition: DayPartition, after: int, *, most: int = LOOKED_AT
) -> int | None:
    """Delete history, log lines and values of the next ``most`` tasks of a detached day."""
    # Return the id to go on after; None at the end.
    step = connection.execute(text(history_of(partition)), {"after": after, "most": most}).one()
    if step.seen < most:
        return None
    save_mark(connection, partition, Mark(detached=True, after=step.after))
    return int(step.after)


def drop_partition(connection: Connection, partition: DayPartition) -> None:
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
    large AS (
        DELETE FROM {LARGE_VALUE} v
        WHERE v.task_id = ANY(ARRAY(SELECT id FROM looked)) AND {_FREE})
    SELECT count(*) AS seen, max(id) AS after FROM looked
    """


_OLD_LINES = text(f"""
    WITH looked AS MATERIALIZED (SELECT id, at FROM {TRANSITION} ORDER BY id LIMIT :most)
    DELETE FROM {TRANSITION} t
    WHERE t.id = ANY(ARRAY(SELECT id FROM looked WHERE at < {NOW} - CAST(:age AS interval)))""")
"""Ids rise with time, nearly: a pass ends at the first page without old lines."""


def delete_old_lines(
    connection: Connection, age: timedelta, *, most: int = LOOKED_AT
) -> tuple[int, bool]:
    """Delete old lines of the log of transitions; return how many, and whether more may follow."""
    gone = connection.execute(_OLD_LINES, {"age": age, "most": most, "now": None}).rowcount
    return gone, gone == most


DAYS_AHEAD = 14
_TODAY = text(f"SELECT ({NOW} AT TIME ZONE 'UTC')::date")
_EXISTING = text("""
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = CAST(:parent AS regclass)""")
_STRAYS = text(f"SELECT count(*) FROM (SELECT FROM {table('task_completed_default')} LIMIT 1) s")


def missing_partitions(connection: Connection, *, now: Clock = None) -> list[datetime]:
    """Return the days, as UTC midnights, from today to 14 days ahead that have no partition."""
    today = connection.execute(_TODAY, {"now": now}).scalar_one()
    midnight = datetime(today.year, today.month, today.day, tzinfo=UTC)
    names = set(connection.execute(_EXISTING, {"parent": COMPLETED}).scalars())
    days = (midnight + timedelta(days=n) for n in range(DAYS_AHEAD + 1))
    return [day for day in days if _name(day) not in names]


def add_partition(connection: Connection, day: datetime) -> None:
    """Create the partition of one day, in its own transaction.

    ATTACH waits for open settles, and later settles wait behind it: hence the short
    ``lock_timeout``. Try again at the next tick.

    Raises:
        sqlalchemy.exc.OperationalError: settles are open.
        sqlalchemy.exc.IntegrityError: the default partition holds rows of that day.
    """
    partition = table(_name(day))
    until = day + timedelta(days=1)
    connection.execute(text("SET LOCAL lock_timeout = '1s'"))
    connection.execute(text(f"CREATE TABLE {partition} (LIKE {COMPLETED} INCLUDING ALL)"))
    connection.execute(
        text(
            f"ALTER TABLE {COMPLETED} ATTACH PARTITION {partition}"
            f" FOR VALUES FROM ('{day.isoformat()}') TO ('{until.isoformat()}')"
        )
    )


def has_strays(connection: Connection) -> bool:
    """Whether the default partition, which should stay empty, holds rows."""
    return bool(connection.execute(_STRAYS).scalar())


def _name(day: datetime) -> str:
    return f"task_completed_p{day:%Y%m%d}"


@dataclass(frozen=True, slots=True)
class Mark:
    """How far pruning has come with a partition."""

    detached: bool = False  # by us, to be dropped
    after: int = 0  # the last id that was read
    names: tuple[str, ...] = ()  # being removed
    done: tuple[str, ...] = ()  # removed from all of it


@dataclass(frozen=True, slots=True)
class DayPartition:
    name: str
    day: datetime
    bytes: int
    attached: bool
    mark: Mark = field(default_factory=Mark)

    @property
    def until(self) -> datetime:
        return self.day + timedelta(days=1)


_OWNS = text("""
    SELECT pg_has_role(current_user, c.relowner, 'USAGE') FROM pg_class c
    WHERE c.oid = CAST(:parent AS regclass)""")
_PARTITIONS = text(f"""
    SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes,
        i.inhrelid IS NOT NULL AS attached,
        obj_description(c.oid, 'pg_class') AS comment, {NOW} AS now
    FROM pg_class c
    LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = CAST(:parent AS regclass)
    WHERE c.relkind = 'r' AND c.relname ~ '^task_completed_p[0-9]{{8}}$'
      AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = CAST(:parent AS regclass))
    ORDER BY c.relname""")


def owns_partitions(connection: Connection) -> bool:
    """Whether this role may detach and drop partitions, as only their owner may."""
    return bool(connection.execute(_OWNS, {"parent": COMPLETED}).scalar())


def partitions(connection: Connection, *, now: Clock = None) -> tuple[list[DayPartition], datetime]:
    """Return all days, also those we detached and did not yet drop, and the database's time."""
    found = []
    at = connection.execute(text(f"SELECT {NOW}"), {"now": now}).scalar_one()
    for row in connection.execute(_PARTITIONS, {"parent": COMPLETED, "now": now}):
        mark = _mark(row.comment)
        if row.attached or mark.detached:
            day = datetime.strptime(row.name[-8:], "%Y%m%d").replace(tzinfo=UTC)
            found.append(DayPartition(row.name, day, row.bytes, row.attached, mark))
    return found, at


def save_mark(connection: Connection, partition: DayPartition, mark: Mark) -> None:
    """Save the mark for the next leader, as the table's comment."""
    said = json.dumps({"tasks_app": {name: getattr(mark, name) for name in Mark.__slots__}})
    quoted = said.replace("'", "''")
    connection.exec_driver_sql(f"COMMENT ON TABLE {table(partition.name)} IS '{quoted}'")


def _mark(comment: str | None) -> Mark:
    try:
        said = json.loads(comment or "")["tasks_app"]
        return Mark(said["detached"], said["after"], tuple(said["names"]), tuple(said["done"]))
    except (ValueError, KeyError, TypeError):
        return Mark()


def due_names(
    partition: DayPartition, early: Mapping[str, timedelta], now: datetime
) -> tuple[str, ...]:
    """Return the names that are too old in all of this day, and still in it."""
    return tuple(
        sorted(
            name
            for name, age in early.items()
            if partition.until <= now - age and name not in partition.mark.done
        )
    )
