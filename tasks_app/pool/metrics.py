"""The figures of one scrape of the metrics, each by a bounded read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import (
    ATTEMPT,
    AUDIT,
    BATCH_SKIP,
    COMPLETED,
    ERROR,
    GATE,
    GROUP_IDS,
    KEY,
    LIMIT,
    LOG_LINES,
    NOW,
    PARTITION,
    PENDING,
    PROGRESS,
    SCHEDULE,
    TRANSITION,
    WORKER,
    Clock,
    table,
)

MOST_COUNTED = 100_000  # tasks of one queue: about 15 ms in the scan's index
MOST_LOOKED_AT = 100  # due rows of one priority whose ages are looked at, in the order of the scan
MOST_PARKED = MOST_FAILED = 20_000
_FIRST = f"SELECT min(queue) AS queue FROM {PENDING} WHERE state = '{State.PENDING}'"
# Both counts need only columns of the scan's index.
_WAITING = text(f"""
    WITH RECURSIVE q AS (
        {_FIRST}
        UNION ALL
        SELECT ({_FIRST} AND queue > q.queue) FROM q WHERE q.queue IS NOT NULL)
    SELECT q.queue, p.pending, p.due, o.oldest
    FROM q
    CROSS JOIN LATERAL (
        SELECT count(*) AS pending, count(*) FILTER (WHERE c.scan_at <= {NOW}) AS due
        FROM (SELECT p.scan_at FROM {PENDING} p
              WHERE p.queue = q.queue AND p.state = '{State.PENDING}'
              ORDER BY p.priority, p.scan_at LIMIT :most) AS c) AS p
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM {NOW} - min(d.due_at)) AS oldest
        FROM generate_series(0, 9) AS r(priority)
        CROSS JOIN LATERAL (
            SELECT p.due_at FROM {PENDING} p
            WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
              AND p.scan_at <= {NOW}
            ORDER BY p.scan_at LIMIT :first) AS d) AS o
    WHERE q.queue IS NOT NULL""")
_PARKED = text(f"""
    SELECT queue, parked_kind, count(*) AS number,
        count(*) FILTER (WHERE scan_at > {NOW}) AS aside,
        extract(epoch FROM {NOW} - min(due_at)) AS oldest
    FROM (SELECT queue, parked_kind, scan_at, due_at FROM {PENDING}
          WHERE state = '{State.PENDING}' AND parked_kind IS NOT NULL AND due_at <= {NOW}
          LIMIT :most) AS p
    GROUP BY queue, parked_kind""")
_RUNNING = text(f"""
    SELECT queue, count(*) AS number,
        extract(epoch FROM {NOW} - min(started_at)) AS longest,
        count(*) FILTER (WHERE lease_until < {NOW}) AS overdue,
        extract(epoch FROM greatest({NOW} - min(lease_until), interval '0')) AS overdue_for
    FROM {PENDING} WHERE state = '{State.RUNNING}' GROUP BY queue""")
_FAILED = text(f"""
    SELECT queue, count(*) AS number,
        count(*) FILTER (WHERE finished_at > {NOW} - CAST(:lately AS interval)) AS lately
    FROM (SELECT queue, finished_at FROM {ERROR} ORDER BY finished_at DESC LIMIT :most) AS e
    GROUP BY queue""")


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """PENDING tasks of a queue; ages in seconds."""

    queue: str
    pending: int
    due: int  # for the scan; :func:`parked_tasks` counts the parked ones
    oldest: float | None


@dataclass(frozen=True, slots=True)
class Parked:
    queue: str
    kind: str
    number: int
    aside: int  # of these, how many the scan skips now: not in QueueBacklog.due
    oldest: float


@dataclass(frozen=True, slots=True)
class Running:
    queue: str
    number: int
    longest: float | None
    overdue: int
    overdue_for: float


@dataclass(frozen=True, slots=True)
class Failed:
    queue: str
    number: int
    lately: int


def waiting_tasks(connection: Connection, *, now: Clock = None) -> list[QueueBacklog]:
    values = {"now": now, "most": MOST_COUNTED, "first": MOST_LOOKED_AT}
    return [QueueBacklog(*row) for row in connection.execute(_WAITING, values)]


def parked_tasks(connection: Connection, *, now: Clock = None) -> list[Parked]:
    return [Parked(*row) for row in connection.execute(_PARKED, {"now": now, "most": MOST_PARKED})]


def running_tasks(connection: Connection, *, now: Clock = None) -> list[Running]:
    return [Running(*row) for row in connection.execute(_RUNNING, {"now": now})]


def failed_tasks(connection: Connection, lately: timedelta, *, now: Clock = None) -> list[Failed]:
    values = {"now": now, "most": MOST_FAILED, "lately": lately}
    return [Failed(*row) for row in connection.execute(_FAILED, values)]


MOST_NAMED = 100  # limits that are shown
_LIMITS = text(f"""
    WITH running AS MATERIALIZED (
        SELECT queue, name, limit_key, more_limit_keys FROM {PENDING}
        WHERE state = '{State.RUNNING}'),
    keyed AS MATERIALIZED (
        SELECT limit_key AS key FROM running WHERE limit_key IS NOT NULL
        UNION ALL SELECT unnest(more_limit_keys) FROM running)
    SELECT l.kind, l.target, l.most, CASE l.kind
        WHEN 'queue' THEN (SELECT count(*) FROM running r WHERE r.queue = l.target)
        WHEN 'name' THEN (SELECT count(*) FROM running r WHERE r.name = l.target)
        ELSE (SELECT coalesce(max(k.number), 0) FROM (
            SELECT count(*) AS number FROM keyed r WHERE r.key = l.target
                OR l.target LIKE '%*' AND starts_with(r.key, rtrim(l.target, '*'))
            GROUP BY r.key) AS k) END AS running
    FROM {LIMIT} l WHERE l.most IS NOT NULL ORDER BY l.kind, l.target LIMIT :most""")
_SCHEDULES = text(f"""
    SELECT count(*) FILTER (WHERE enabled AND remark IS NULL) AS enabled,
        count(*) FILTER (WHERE NOT enabled) AS disabled,
        count(*) FILTER (WHERE enabled AND remark IS NOT NULL) AS broken,
        count(*) FILTER (WHERE enabled AND next_run_at < {NOW} - CAST(:patience AS interval))
            AS missed,
        coalesce(extract(epoch FROM max({NOW} - next_run_at) FILTER (
            WHERE enabled AND next_run_at < {NOW})), 0) AS late
    FROM {SCHEDULE}""")
_WORKERS = text(f"""
    SELECT count(*) FILTER (WHERE live AND queues <> '{{}}') AS live,
        count(*) FILTER (WHERE live AND queues = '{{}}') AS stopping,
        count(*) FILTER (WHERE NOT live) AS silent,
        coalesce(sum(threads) FILTER (WHERE live AND queues <> '{{}}'), 0) AS threads,
        coalesce(extract(epoch FROM max(silence)), 0) AS silence
    FROM (SELECT queues, threads, {NOW} - seen_at AS silence,
              seen_at > {NOW} - CAST(:within AS interval) AS live FROM {WORKER}) AS w""")
_SERVED = text(f"""
    SELECT q.queue, count(*) AS number FROM {WORKER} w CROSS JOIN unnest(w.queues) AS q(queue)
    WHERE w.seen_at > {NOW} - CAST(:within AS interval) GROUP BY q.queue""")


@dataclass(frozen=True, slots=True)
class LimitInUse:
    kind: str
    target: str
    most: int
    running: int  # of a prefix of keys, for the fullest key


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    enabled: int
    disabled: int
    broken: int
    missed: int
    late: float  # the most, in seconds


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    live: int
    stopping: int
    silent: int
    threads: int
    silence: float  # the longest of one, in seconds


def limits_in_use(connection: Connection) -> list[LimitInUse]:
    return [LimitInUse(*row) for row in connection.execute(_LIMITS, {"most": MOST_NAMED})]


def count_schedules(
    connection: Connection, patience: timedelta, *, now: Clock = None
) -> ScheduleCounts:
    return ScheduleCounts(*connection.execute(_SCHEDULES, {"now": now, "patience": patience}).one())


def count_workers(connection: Connection, within: timedelta, *, now: Clock = None) -> WorkerCounts:
    """Count children; one whose last heartbeat is older than ``within`` is silent."""
    return WorkerCounts(*connection.execute(_WORKERS, {"now": now, "within": within}).one())


def workers_by_queue(
    connection: Connection, within: timedelta, *, now: Clock = None
) -> dict[str, int]:
    values = {"now": now, "within": within}
    return {row.queue: row.number for row in connection.execute(_SERVED, values)}


GROWING = tuple(
    name.rpartition(".")[2]
    for name in (
        *(PENDING, COMPLETED, ERROR, ATTEMPT, TRANSITION, LOG_LINES, KEY, GATE),
        *(AUDIT, PROGRESS, GROUP_IDS, PARTITION, BATCH_SKIP),
    )
)
"""Tables that grow with the number of tasks; a size costs the server a few calls on files."""
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
    GROUP BY t.name ORDER BY t.name""")
_SNAPSHOT = text("""
    SELECT coalesce(max(age(x.held)), 0) FROM (
        SELECT backend_xmin AS held FROM pg_stat_activity WHERE pid <> pg_backend_pid()
        UNION ALL SELECT transaction FROM pg_prepared_xacts
        UNION ALL SELECT xmin FROM pg_replication_slots) AS x""")
# Counted from today to the first gap.
_HORIZON = text(f"""
    WITH today AS (SELECT ({NOW} AT TIME ZONE 'UTC')::date AS day)
    SELECT min(n) - 1 FROM today CROSS JOIN generate_series(0, :most) AS n
    WHERE 'task_completed_p' || to_char(day + n, 'YYYYMMDD') <> ALL (
        ARRAY(SELECT CAST(c.relname AS text) FROM pg_inherits i
              JOIN pg_class c ON c.oid = i.inhrelid
              WHERE i.inhparent = CAST(:parent AS regclass)))""")
FARTHEST = 366


@dataclass(frozen=True, slots=True)
class Size:
    """A table with all its partitions."""

    table: str
    table_bytes: int
    index_bytes: int
    rows: float  # the server's estimate
    dead: int


def table_sizes(connection: Connection) -> list[Size]:
    values = {"names": list(GROWING), "pending": PENDING}
    return [Size(*row) for row in connection.execute(_SIZES, values)]


def snapshot_age(connection: Connection) -> int:
    """Return the age of the oldest snapshot in use, in transactions."""
    return int(connection.execute(_SNAPSHOT).scalar_one())


def days_partitioned_ahead(connection: Connection, *, now: Clock = None) -> int:
    """Return for how many days after today there are partitions; -1: none for today."""
    values = {"now": now, "most": FARTHEST, "parent": COMPLETED}
    found = connection.execute(_HORIZON, values).scalar()
    return FARTHEST if found is None else int(found)


_CREATED = text("""
    SELECT CASE WHEN has_sequence_privilege(CAST(CAST(:name AS regclass) AS oid), 'SELECT, USAGE')
        THEN coalesce(pg_sequence_last_value(CAST(:name AS regclass)), 0) END""")


def ids_given(connection: Connection) -> int | None:
    """Return how many task ids were ever given; None: this role may not read the sequence."""
    return connection.execute(_CREATED, {"name": table("task_pending_id_seq")}).scalar_one()  # type: ignore[no-any-return]
