"""Facts about the database and the work in it, for checks. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool import tables as t
from tasks_app.pool.fragments.conditions import QUEUES

# The tables that a worker reads and writes.
WRITTEN = (
    *(t.PENDING, t.COMPLETED, t.ERROR, t.ATTEMPT, t.WORKER, t.LEASE, t.PAUSE, t.SCHEDULE, t.FIRE),
    *(t.LOCK, t.LOCK_HOLDER, t.LOCK_PART, t.LOCK_WAIT, t.LIMIT, t.GATE),
    *(t.QUEUE, t.WINDOW, t.CALENDAR, t.BREAKER, t.CALLS, t.HELD),
)
MOST_DUE = 100_000  # due rows that are read, of a backlog that may have millions


@dataclass(frozen=True, slots=True)
class ServerFacts:
    version: str
    major: int
    encoding: str
    autovacuum: bool
    connections: int  # how many it allows roles that are not superusers
    sees_all: bool  # whether this role may see the statements of others
    role: str
    owner: bool  # whether this role owns the tables
    forgetful: list[str]  # settings that are off, so a crash of the server loses commits


def server(connection: Connection) -> ServerFacts:
    query = text(f"""
        SELECT current_setting('server_version') AS version,
            current_setting('server_version_num')::int / 10000 AS major,
            current_setting('server_encoding') AS encoding,
            current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean
                AS autovacuum,
            current_setting('max_connections')::int
                - current_setting('superuser_reserved_connections')::int AS connections,
            pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all,
            current_user AS role,
            coalesce((SELECT pg_has_role(current_user, c.relowner, 'USAGE') FROM pg_class c
                WHERE c.oid = to_regclass('{t.PENDING}')), false) AS owner,
            ARRAY(SELECT s.name
                FROM unnest(ARRAY['fsync', 'full_page_writes', 'synchronous_commit']) AS s(name)
                WHERE current_setting(s.name) = 'off') AS forgetful
    """)
    return ServerFacts(*connection.execute(query).one())


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that keeps vacuum from removing what it may still read."""

    who: str
    role: str
    idle: bool  # no statement runs in it
    open_for: timedelta


def open_transactions(connection: Connection) -> list[OpenTransaction]:
    """Return the other open transactions of this database, the oldest first."""
    query = text("""
        SELECT 'session ' || pid AS who, usename AS role, state LIKE 'idle in transaction%' AS idle,
            clock_timestamp() - xact_start AS open_for
        FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND datname = current_database()
          AND backend_type = 'client backend' AND xact_start IS NOT NULL
        UNION ALL
        SELECT 'prepared transaction ' || quote_literal(gid), owner, false,
            clock_timestamp() - prepared
        FROM pg_prepared_xacts WHERE database = current_database()
        ORDER BY open_for DESC
    """)
    return [OpenTransaction(*row) for row in connection.execute(query)]


def current_settings(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """Return the session's settings that the server knows, times in their own unit."""
    query = text("SELECT name, setting FROM pg_settings WHERE name = ANY(:names)")
    rows = connection.execute(query, {"names": list(names)})
    return {row.name: row.setting for row in rows}


def missing_privileges(connection: Connection) -> list[tuple[str, str]]:
    query = text("""
        SELECT t.name, p.privilege
        FROM unnest(CAST(:tables AS text[])) AS t(name),
            unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p(privilege)
        WHERE NOT has_table_privilege(t.name, p.privilege)
    """)
    rows = connection.execute(query, {"tables": list(WRITTEN)})
    return [(row.name, row.privilege) for row in rows]


def never_vacuumed(connection: Connection) -> list[str]:
    query = text("""
        SELECT t.name FROM unnest(CAST(:tables AS text[])) AS t(name)
        JOIN pg_class c ON c.oid = t.name::regclass
        WHERE c.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off']
    """)
    return list(connection.execute(query, {"tables": list(WRITTEN)}).scalars())


@dataclass(frozen=True, slots=True)
class DueWork:
    queue: str
    name: str
    number: int
    waits: timedelta  # the longest of them


def due_work(connection: Connection) -> list[DueWork]:
    """Count due tasks by queue and name, the longest waiting first."""
    # A row is parked for 30 s at most.
    query = text(f"""
        SELECT queue, name, count(*) AS number, {t.NOW} - min(due_at) AS waits
        FROM (
            SELECT p.queue, p.name, p.due_at FROM ({QUEUES}) AS q
            CROSS JOIN generate_series(0, 9) AS r(priority)
            CROSS JOIN LATERAL (
                SELECT * FROM {t.PENDING} p
                WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
                  AND p.scan_at <= {t.NOW} + interval '30 s' AND p.due_at <= {t.NOW}
                ORDER BY p.scan_at LIMIT {MOST_DUE}) AS p
            LIMIT {MOST_DUE}) d
        GROUP BY queue, name ORDER BY min(due_at)
    """)
    return [DueWork(*row) for row in connection.execute(query, {"now": None})]


def unindexed_references(connection: Connection, rows: int) -> Sequence[Row[Any]]:
    """Return foreign keys of the user's big tables that a DELETE meets without an index.

    Each as (referencing table, its columns, referenced table), of tables of at least so many rows
    that refer to one from which rows are deleted.
    """
    query = text("""
        SELECT f.conrelid::regclass::text AS source,
            (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY k.number)
             FROM unnest(f.conkey) WITH ORDINALITY AS k(attnum, number)
             JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.attnum) AS columns,
            f.confrelid::regclass::text AS target
        FROM pg_constraint f
        JOIN pg_class c ON c.oid = f.conrelid AND c.reltuples >= :rows
        JOIN pg_stat_user_tables s ON s.relid = f.confrelid AND s.n_tup_del > 0
        WHERE f.contype = 'f' AND f.conparentid = 0 AND NOT EXISTS (
            SELECT FROM pg_index i
            WHERE i.indrelid = f.conrelid AND i.indisvalid AND i.indpred IS NULL
              AND (CAST(i.indkey AS smallint[]))[0:cardinality(f.conkey) - 1] @> f.conkey)
        ORDER BY c.reltuples DESC, 1, 2""")
    return connection.execute(query, {"rows": rows}).all()


def blocked_by_failed(connection: Connection) -> Sequence[Row[Any]]:
    """Return order keys that a failed task blocks, those of the most waiting tasks first.

    As in claims, a key's first row of the error pool blocks it unless it lets others pass. Reads up
    to 1,000 keys, and counts up to 10,000 tasks behind each.
    """
    query = text(f"""
        SELECT e.order_key AS key, e.id AS task_id, w.number FROM (
            SELECT DISTINCT ON (order_key) order_key, id FROM {t.ERROR}
            WHERE order_key IS NOT NULL AND order_skips IS NOT TRUE
            ORDER BY order_key, id LIMIT 1000) AS e
        CROSS JOIN LATERAL (
            SELECT count(*) AS number FROM (
                SELECT FROM {t.PENDING} p WHERE p.order_key = e.order_key AND p.id > e.id
                  AND p.state = '{State.PENDING}' LIMIT 10000) AS p) AS w
        WHERE w.number > 0 ORDER BY w.number DESC, e.id
    """)
    return connection.execute(query).all()


def expired_leases(connection: Connection) -> tuple[int, timedelta]:
    """Return how many tasks run with an expired lease, and for how long at most."""
    query = text(f"""
        SELECT count(*) AS number, max({t.NOW} - lease_until) AS since
        FROM {t.PENDING} WHERE state = '{State.RUNNING}' AND lease_until < {t.NOW}
    """)
    row = connection.execute(query, {"now": None}).one()
    return row.number, row.since or timedelta(0)


def long_runs(connection: Connection, longer: timedelta) -> Sequence[Row[Any]]:
    query = text(f"""
        SELECT p.id, p.name, {t.NOW} - p.started_at AS ran FROM {t.PENDING} p
        WHERE p.state = '{State.RUNNING}' AND p.started_at < {t.NOW} - CAST(:longer AS interval)
        ORDER BY p.started_at, p.id LIMIT 1000
    """)
    return connection.execute(query, {"longer": longer, "now": None}).all()


def due_tasks_left(
    connection: Connection, queues: Sequence[str], since: datetime
) -> Sequence[Row[Any]]:
    """Return what is due, the most first; what is not parked only if it was due at ``since``."""
    # A row is the tasks of one name in one queue that wait for the same; ``first``: the lowest id.
    values = {"queues": list(queues), "since": since, "now": None}
    # Parked rows have an index of their own; of the others this reads what the scan sees. A row
    # that is not parked and became due after the caller's start came too late for it.
    query = text(f"""
        SELECT d.queue, d.name, d.parked, count(*) AS number, min(d.id) AS first FROM (
            (SELECT p.id, p.queue, p.name, p.parked FROM {t.PENDING} p
             WHERE p.parked_kind IS NOT NULL AND p.state = '{State.PENDING}' AND p.due_at <= {t.NOW}
               AND p.queue = ANY(CAST(:queues AS text[])) LIMIT {MOST_DUE})
            UNION ALL
            (SELECT p.id, p.queue, p.name, NULL FROM unnest(CAST(:queues AS text[])) AS q(queue)
             CROSS JOIN generate_series(0, 9) AS r(priority)
             CROSS JOIN LATERAL (
                SELECT * FROM {t.PENDING} p
                WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
                  AND p.scan_at <= {t.NOW} AND p.due_at <= CAST(:since AS timestamptz)
                  AND p.parked IS NULL
                ORDER BY p.scan_at LIMIT {MOST_DUE}) AS p
             LIMIT {MOST_DUE})) AS d
        GROUP BY d.queue, d.name, d.parked ORDER BY number DESC, first
    """)
    return connection.execute(query, values).all()
