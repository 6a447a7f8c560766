"""Maintain: the completed pool's daily partitions, made long before they are needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.pool.tables import COMPLETED, NOW, table

DAYS_AHEAD = 14

_TODAY = text(f"SELECT ({NOW} AT TIME ZONE 'UTC')::date")
_EXISTING = text("""
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = CAST(:parent AS regclass)
""")
_STRAYS = text(f"SELECT count(*) FROM (SELECT FROM {table('task_completed_default')} LIMIT 1) s")


def missing_partitions(connection: Connection, *, now: datetime | None = None) -> list[datetime]:
    """Return the days, as UTC midnights, from today to 14 days ahead that have no partition."""
    today = connection.execute(_TODAY, {"now": now}).scalar_one()
    midnight = datetime(today.year, today.month, today.day, tzinfo=UTC)
    names = set(connection.execute(_EXISTING, {"parent": COMPLETED}).scalars())
    days = (midnight + timedelta(days=n) for n in range(DAYS_AHEAD + 1))
    return [day for day in days if _name(day) not in names]


def add_partition(connection: Connection, day: datetime) -> None:
    """Make the partition of one day, in a transaction of its own.

    ATTACH waits for settles that are open, and settles behind it wait too: hence the short
    ``lock_timeout``. Try again at the next tick.

    Raises:
        sqlalchemy.exc.OperationalError: settles are open just now.
        sqlalchemy.exc.IntegrityError: the default partition holds rows of that day already.
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
    """Tell whether the default partition, which should stay empty, holds rows."""
    return bool(connection.execute(_STRAYS).scalar())


def _name(day: datetime) -> str:
    return f"task_completed_p{day:%Y%m%d}"


_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far pruning has come with a partition."""

    detached: bool = False
    """It is to be dropped. Tables that somebody else detached are left alone."""
    after: int = 0
    """The last id that was looked at."""
    names: tuple[str, ...] = ()
    """What is being removed from it."""
    done: tuple[str, ...] = ()
    """What was removed from all of it."""


@dataclass(frozen=True, slots=True)
class DayPartition:
    """One day of the completed pool."""

    name: str
    day: datetime
    bytes: int
    attached: bool
    mark: Mark = field(default_factory=Mark)

    @property
    def until(self) -> datetime:
        return self.day + _DAY


_OWNS = text("""
    SELECT pg_has_role(current_user, c.relowner, 'USAGE') FROM pg_class c
    WHERE c.oid = CAST(:parent AS regclass)
""")


_PARTITIONS = text(f"""
    SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes,
        i.inhrelid IS NOT NULL AS attached,
        obj_description(c.oid, 'pg_class') AS comment, {NOW} AS now
    FROM pg_class c
    LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = CAST(:parent AS regclass)
    WHERE c.relkind = 'r' AND c.relname ~ '^task_completed_p[0-9]{{8}}$'
      AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = CAST(:parent AS regclass))
    ORDER BY c.relname
""")


def owns(connection: Connection) -> bool:
    """Tell whether this role may detach and drop partitions, which are their owner's."""
    return bool(connection.execute(_OWNS, {"parent": COMPLETED}).scalar())


def partitions(
    connection: Connection, *, now: datetime | None = None
) -> tuple[list[DayPartition], datetime]:
    """Return all days, and those detached by us and not yet dropped; and the database's time."""
    found = []
    at = connection.execute(text(f"SELECT {NOW}"), {"now": now}).scalar_one()
    for row in connection.execute(_PARTITIONS, {"parent": COMPLETED, "now": now}):
        mark = _mark(row.comment)
        if row.attached or mark.detached:
            day = datetime.strptime(row.name[-8:], "%Y%m%d").replace(tzinfo=UTC)
            found.append(DayPartition(row.name, day, row.bytes, row.attached, mark))
    return found, at


def remember(connection: Connection, partition: DayPartition, mark: Mark) -> None:
    """Write how far pruning has come, for the next leader."""
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
    """Return the names that are too old in all of this day, and not yet removed from it."""
    return tuple(
        sorted(
            name
            for name, age in early.items()
            if partition.until <= now - age and name not in partition.mark.done
        )
    )
