"""What the database says of itself and of the work in it, for checks. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import (
    ATTEMPT,
    BREAKER,
    CALENDAR,
    CALLS,
    COMPLETED,
    ERROR,
    FIRE,
    GATE,
    HELD,
    LEASE,
    LIMIT,
    LOCK,
    LOCK_HOLDER,
    LOCK_PART,
    LOCK_WAIT,
    NOW,
    PAUSE,
    PENDING,
    QUEUE,
    SCHEDULE,
    WINDOW,
    WORKER,
)

WRITTEN = (
    *(PENDING, COMPLETED, ERROR, ATTEMPT, WORKER, LEASE, PAUSE, SCHEDULE, FIRE),
    *(LOCK, LOCK_HOLDER, LOCK_PART, LOCK_WAIT, LIMIT, GATE),
    *(QUEUE, WINDOW, CALENDAR, BREAKER, CALLS, HELD),
)
"""Tables that a worker reads and writes."""
MOST_DUE = 100_000  # due rows that are looked at: a backlog of millions is no reason to read it all
MOST_KEYS, MOST_BEHIND = 1_000, 10_000
"""Order keys that are looked at, and tasks behind each that are counted."""
_SERVER = text(f"""
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
            WHERE c.oid = to_regclass('{PENDING}')), false) AS owner,
        ARRAY(SELECT s.name FROM unnest(ARRAY['fsync', 'full_page_writes', 'synchronous_commit'])
            AS s(name) WHERE current_setting(s.name) = 'off') AS forgetful
""")
_SETTINGS = text("SELECT name, setting FROM pg_settings WHERE name = ANY(:names)")
_FORBIDDEN = text("""
    SELECT t.name, p.privilege
    FROM unnest(CAST(:tables AS text[])) AS t(name),
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p(privilege)
    WHERE NOT has_table_privilege(t.name, p.privilege)
""")
_NEVER_VACUUMED = text("""
    SELECT t.name FROM unnest(CAST(:tables AS text[])) AS t(name)
    JOIN pg_class c ON c.oid = t.name::regclass
    WHERE c.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off']
""")
_OPEN = text("""
    SELECT 'session ' || pid AS who, usename AS role, state LIKE 'idle in transaction%' AS idle,
        clock_timestamp() - xact_start AS open_for
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND datname = current_database()
      AND backend_type = 'client backend' AND xact_start IS NOT NULL
    UNION ALL
    SELECT 'prepared transaction ' || quote_literal(gid), owner, false, clock_timestamp() - prepared
    FROM pg_prepared_xacts WHERE database = current_database()
    ORDER BY open_for DESC
""")
_FIRST_QUEUE = f"SELECT min(queue) AS queue FROM {PENDING} WHERE state = '{State.PENDING}'"
QUEUES = f"""
    WITH RECURSIVE q AS (
        {_FIRST_QUEUE}
        UNION ALL
        SELECT ({_FIRST_QUEUE} AND queue > q.queue) FROM q WHERE q.queue IS NOT NULL)
    SELECT queue FROM q WHERE queue IS NOT NULL
"""
"""One probe for each: what is not due yet, millions perhaps, is not read to find what is."""
# A row is parked for 30 s at most.
_DUE = text(f"""
    SELECT queue, name, count(*) AS number, {NOW} - min(due_at) AS waits
    FROM (
        SELECT p.queue, p.name, p.due_at FROM ({QUEUES}) AS q
        CROSS JOIN generate_series(0, 9) AS r(priority)
        CROSS JOIN LATERAL (
            SELECT * FROM {PENDING} p
            WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
              AND p.scan_at <= {NOW} + interval '30 s' AND p.due_at <= {NOW}
            ORDER BY p.scan_at LIMIT {MOST_DUE}) AS p
        LIMIT {MOST_DUE}) d
    GROUP BY queue, name ORDER BY min(due_at)
""")
# A key's first row of the error pool that does not let others pass holds it: as for claims.
_BEHIND = text(f"""
    SELECT e.order_key, e.id, w.number FROM (
        SELECT DISTINCT ON (order_key) order_key, id FROM {ERROR}
        WHERE order_key IS NOT NULL AND order_skips IS NOT TRUE
        ORDER BY order_key, id LIMIT :keys) AS e
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM (
            SELECT FROM {PENDING} p WHERE p.order_key = e.order_key AND p.id > e.id
              AND p.state = '{State.PENDING}' LIMIT :each) AS p) AS w
    WHERE w.number > 0 ORDER BY w.number DESC, e.id
""")
_BEYOND = text(f"""
    SELECT count(*) AS number, max({NOW} - lease_until) AS since
    FROM {PENDING} WHERE state = '{State.RUNNING}' AND lease_until < {NOW}
""")
_LONG = text(f"""
    SELECT p.id, p.name, {NOW} - p.started_at AS ran FROM {PENDING} p
    WHERE p.state = '{State.RUNNING}' AND p.started_at < {NOW} - CAST(:longer AS interval)
    ORDER BY p.started_at, p.id LIMIT 1000
""")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server, and who we are there."""

    version: str
    major: int
    encoding: str
    autovacuum: bool
    connections: int  # how many it takes from roles like ours
    sees_all: bool  # whether this role may see what others run
    role: str
    owner: bool  # whether the tables are this role's
    forgetful: list[str]
    """Settings that are off, so that a crash of the server loses what was committed."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Somebody's transaction: vacuum cannot remove what it may still look at."""

    who: str
    role: str
    idle: bool  # open, and nothing runs in it
    open_for: timedelta


@dataclass(frozen=True, slots=True)
class DueWork:
    """Due tasks of one name in one queue."""

    queue: str
    name: str
    number: int
    waits: timedelta  # the longest of them


@dataclass(frozen=True, slots=True)
class BehindFailed:
    """Tasks that wait behind one of their order key that has failed for good."""

    key: str
    task_id: int
    number: int


class LongRun(NamedTuple):
    """A task that runs, and for how long."""

    id: int
    name: str
    ran: timedelta


def server(connection: Connection) -> ServerFacts:
    return ServerFacts(*connection.execute(_SERVER).one())


def in_force(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """Return how settings stand in this session, times in their own unit; those that it knows."""
    rows = connection.execute(_SETTINGS, {"names": list(names)})
    return {row.name: row.setting for row in rows}


def forbidden(connection: Connection) -> list[tuple[str, str]]:
    """Return table and privilege, of all that a worker needs and this role has not."""
    rows = connection.execute(_FORBIDDEN, {"tables": list(WRITTEN)})
    return [(row.name, row.privilege) for row in rows]


def never_vacuumed(connection: Connection) -> list[str]:
    """Return tables of ours for which autovacuum is switched off."""
    return list(connection.execute(_NEVER_VACUUMED, {"tables": list(WRITTEN)}).scalars())


def open_transactions(connection: Connection) -> list[OpenTransaction]:
    """Return other transactions that are open in this database, the oldest first."""
    return [OpenTransaction(*row) for row in connection.execute(_OPEN)]


def due_work(connection: Connection) -> list[DueWork]:
    """Count due tasks by queue and name, the longest waiting first."""
    return [DueWork(*row) for row in connection.execute(_DUE, {"now": None})]


def behind_failed(connection: Connection) -> list[BehindFailed]:
    """Return order keys that a failed task holds, those of the most waiting tasks first."""
    values = {"keys": MOST_KEYS, "each": MOST_BEHIND}
    return [BehindFailed(*row) for row in connection.execute(_BEHIND, values)]


def beyond_lease(connection: Connection) -> tuple[int, timedelta]:
    """Return how many tasks are RUNNING although their lease is over, and for how long at most."""
    row = connection.execute(_BEYOND, {"now": None}).one()
    return row.number, row.since or timedelta(0)


def long_runs(connection: Connection, longer: timedelta) -> list[LongRun]:
    """Return runs that have taken longer by now, the longest first."""
    values = {"longer": longer, "now": None}
    return [LongRun(*row) for row in connection.execute(_LONG, values)]


def queues_in_use(connection: Connection) -> set[str]:
    """Return the queues with pending tasks."""
    return set(connection.execute(text(QUEUES)).scalars())


MOST = 100_000  # rows that are looked at
# Parked rows have an index of their own; of the others, what the scan sees. A row that became due
# since the caller began, and is not parked, was not passed over: it came too late.
_DUE_TASKS_LEFT = text(f"""
    SELECT d.queue, d.name, d.parked, count(*) AS number, min(d.id) AS first FROM (
        (SELECT p.id, p.queue, p.name, p.parked FROM {PENDING} p
         WHERE p.parked_kind IS NOT NULL AND p.state = '{State.PENDING}' AND p.due_at <= {NOW}
           AND p.queue = ANY(CAST(:queues AS text[])) LIMIT {MOST})
        UNION ALL
        (SELECT p.id, p.queue, p.name, NULL FROM unnest(CAST(:queues AS text[])) AS q(queue)
         CROSS JOIN generate_series(0, 9) AS r(priority)
         CROSS JOIN LATERAL (
            SELECT * FROM {PENDING} p
            WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
              AND p.scan_at <= {NOW} AND p.due_at <= CAST(:since AS timestamptz)
              AND p.parked IS NULL
            ORDER BY p.scan_at LIMIT {MOST}) AS p
         LIMIT {MOST})) AS d
    GROUP BY d.queue, d.name, d.parked ORDER BY number DESC, first
""")


@dataclass(frozen=True, slots=True)
class DueTasksLeft:
    """Due tasks of one name in one queue that wait for the same."""

    queue: str
    name: str
    parked: str | None  # why they stand aside; None: they do not
    number: int
    first: int  # the lowest id


def due_tasks_left(
    connection: Connection, queues: Sequence[str], since: datetime, *, now: datetime | None = None
) -> list[DueTasksLeft]:
    """Return what is due, the most first; what is not parked only if it was due at ``since``."""
    values = {"queues": list(queues), "since": since, "now": now}
    return [DueTasksLeft(*row) for row in connection.execute(_DUE_TASKS_LEFT, values)]
