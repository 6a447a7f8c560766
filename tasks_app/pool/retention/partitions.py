"""Maintain: the completed pool's daily partitions, made long before they are needed."""

from __future__ import annotations

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
