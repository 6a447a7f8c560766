"""For users' tests: databases of their own, an empty pool, and time that is moved forward."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.pool.tables import (
    BREAKER,
    EVENT,
    EVENT_WAIT,
    GATE,
    KEY,
    LEASE,
    PAUSE,
    PENDING,
    SCHEDULE,
    STEP,
    TABLES,
    VERSION,
    table,
)

PREFIX = "tasks_app_kit_"
_LEFT = text(f"""
    SELECT d.datname FROM pg_database d WHERE d.datname ~ '^{PREFIX}[0-9a-f]{{8}}_'
    AND NOT EXISTS (
        SELECT FROM pg_stat_activity s
        WHERE s.application_name = left(d.datname, {len(PREFIX) + 8}))
    AND pg_has_role(d.datdba, 'MEMBER')""")


def announce_use(connection: Connection, mark: str) -> None:
    """Mark the databases of ``mark`` as in use while this connection lives."""
    connection.exec_driver_sql(f"SET application_name = '{mark}'")


def left_over_databases(connection: Connection) -> Sequence[str]:
    """Return the databases of sessions that have died."""
    return connection.execute(_LEFT).scalars().all()


def create_database(connection: Connection, name: str, template: str | None = None) -> None:
    copied = f' TEMPLATE "{template}"' if template else ""
    connection.exec_driver_sql(f'CREATE DATABASE "{name}"{copied}')


def drop_database(connection: Connection, name: str) -> None:
    connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def do_not_flush(connection: Connection) -> None:
    """Let a temporary server not wait for the disk."""
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        connection.exec_driver_sql(f"ALTER SYSTEM SET {setting} = off")
    connection.exec_driver_sql("SELECT pg_reload_conf()")


LARGE = 100  # pages; TRUNCATE takes a millisecond and more, so few rows are deleted instead
_VERSION = VERSION.rpartition(".")[2]
_NAMES = [table(name) for name in sorted(TABLES - {_VERSION})]
_LISTED = ", ".join(_NAMES)
_DELETES = "\n".join(
    f"IF EXISTS (SELECT FROM {name}) THEN DELETE FROM {name}; END IF;" for name in _NAMES
)
_EMPTY = text(f"""
    DO $$
    BEGIN
        IF EXISTS (
            SELECT FROM unnest(ARRAY[{", ".join(f"'{name}'" for name in _NAMES)}]) AS t(name)
            LEFT JOIN pg_partition_tree(CAST(t.name AS regclass)) ON true
            WHERE pg_table_size(coalesce(relid, CAST(t.name AS regclass))) > {LARGE} * 8192)
        THEN
            TRUNCATE {_LISTED};
        ELSE
            {_DELETES}
        END IF;
    END $$""")


def empty_tables(connection: Connection) -> None:
    """Remove all rows but the version of the schema; ids go on rising."""
    connection.execute(_EMPTY)


_TRAVELLED = "tasks_app: travelled"
_OF_TASKS = (
    *("due_at", "scan_at", "created_at", "started_at", "expires_at"),
    *("cancel_requested_at", "lease_until", "outage_since", "held_due_at", "changed_at"),
    "kill_at",
)
_MOVED = {
    PENDING: _OF_TASKS,
    KEY: ("until",),
    STEP: ("at",),
    PAUSE: ("since", "resume_at"),
    GATE: ("look_at", "filled_at"),
    BREAKER: ("since", "look_at", "let_at"),
    EVENT: ("sent_at",),
    EVENT_WAIT: ("since", "until", "not_before"),
}


def _moves(name: str, columns: tuple[str, ...], condition: str = "true") -> str:
    sets = ", ".join(f"{column} = {column} - CAST(:span AS interval)" for column in columns)
    return f"UPDATE {name} SET {sets} WHERE {condition}"


_SHIFT = [text(_moves(name, columns)) for name, columns in _MOVED.items()]
_SHIFT_FIRED = text(_moves(PENDING, _OF_TASKS, "created_at > statement_timestamp()"))
_ADD = text(f"""
    INSERT INTO {LEASE} AS l (name, holder, token, rank, notes)
    VALUES ('{_TRAVELLED}', 'tests', gen_random_uuid(), 0,
        jsonb_build_object('s', CAST(:s AS float8)))
    ON CONFLICT (name) DO UPDATE SET notes = jsonb_build_object(
        's', CAST(l.notes ->> 's' AS float8) + CAST(:s AS float8))
    RETURNING CAST(notes ->> 's' AS float8), statement_timestamp()""")
_NEXT = text(f"""
    SELECT min(s.next_run_at) FROM {SCHEDULE} s
    WHERE s.enabled AND s.next_run_at <= :until
      AND (CAST(:after AS timestamptz) IS NULL OR s.next_run_at > :after)""")


def shift_instants(connection: Connection, span: timedelta) -> tuple[timedelta, datetime]:
    """Move all instants; return the sum of all moves, and the real time."""
    for statement in _SHIFT:
        connection.execute(statement, {"span": span})
    seconds, now = connection.execute(_ADD, {"s": span.total_seconds()}).one()
    return timedelta(seconds=seconds), now


def next_instant(
    connection: Connection, until: datetime, after: datetime | None = None
) -> datetime | None:
    """Return the first instant of any schedule up to ``until``, after ``after``."""
    return connection.execute(_NEXT, {"until": until, "after": after}).scalar()


def shift_fired(connection: Connection, passed: timedelta) -> None:
    connection.execute(_SHIFT_FIRED, {"span": passed})
