"""The figures of one scrape of the metrics, each by a bounded read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.conditions import QUEUES
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
    STEP,
    TRANSITION,
    WORKER,
    table,
)

Rows: TypeAlias = Sequence[Row[Any]]  # with the names of the statement's columns
MOST_COUNTED = 100_000  # tasks of one queue: about 15 ms in the scan's index
MOST_LOOKED_AT = 100  # due rows of one priority whose ages are looked at, in the order of the scan
MOST_PARKED = MOST_FAILED = 20_000
# ``due`` is for the scan; ``parked_tasks`` counts the parked ones. Ages are in seconds here. Both
# counts need only columns of the scan's index.
_WAITING = text(f"""
    SELECT q.queue, p.pending, p.due, o.oldest
    FROM ({QUEUES}) AS q
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
            ORDER BY p.scan_at LIMIT :first) AS d) AS o""")
# ``aside``: how many the scan skips now, so that they are not in ``due`` of _WAITING.
_PARKED = text(f"""
    SELECT queue, parked_kind AS kind, count(*) AS number,
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


def waiting_tasks(connection: Connection) -> Rows:
    values = {"now": None, "most": MOST_COUNTED, "first": MOST_LOOKED_AT}
    return connection.execute(_WAITING, values).all()


def parked_tasks(connection: Connection) -> Rows:
    return connection.execute(_PARKED, {"now": None, "most": MOST_PARKED}).all()


def running_tasks(connection: Connection) -> Rows:
    return connection.execute(_RUNNING, {"now": None}).all()


def failed_tasks(connection: Connection, lately: timedelta) -> Rows:
    values = {"now": None, "most": MOST_FAILED, "lately": lately}
    return connection.execute(_FAILED, values).all()


MOST_NAMED = 100  # limits that are shown
# Of a prefix of keys, what runs for the fullest key.
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


def limits_in_use(connection: Connection) -> Rows:
    return connection.execute(_LIMITS, {"most": MOST_NAMED}).all()


def count_schedules(connection: Connection, patience: timedelta) -> Row[Any]:
    """Return the numbers; ``late`` is the most, in seconds."""
    return connection.execute(_SCHEDULES, {"now": None, "patience": patience}).one()


def count_workers(connection: Connection, within: timedelta) -> Row[Any]:
    """Count children; one whose last heartbeat is older than ``within`` is silent."""
    return connection.execute(_WORKERS, {"now": None, "within": within}).one()


def workers_by_queue(connection: Connection, within: timedelta) -> dict[str, int]:
    found = connection.execute(_SERVED, {"now": None, "within": within})
    return {row.queue: row.number for row in found}


GROWING = tuple(
    name.rpartition(".")[2]
    for name in (
        *(PENDING, COMPLETED, ERROR, ATTEMPT, TRANSITION, LOG_LINES, KEY, GATE),
        *(AUDIT, PROGRESS, STEP, GROUP_IDS, PARTITION, BATCH_SKIP),
    )
)
"""Tables that grow with the number of tasks; a size costs the server a few calls on files."""
# A partitioned table has no file of its own: its partitions are counted for it.
_SIZES = text("""
    SELECT t.name, sum(pg_table_size(c.oid)) AS table_bytes,
        sum(pg_indexes_size(c.oid)) AS index_bytes, sum(greatest(c.reltuples, 0)) AS rows,
        sum(pg_stat_get_dead_tuples(c.oid)) AS dead
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


def table_sizes(connection: Connection) -> Rows:
    """Return each table with all its partitions; the server estimates ``rows``."""
    return connection.execute(_SIZES, {"names": list(GROWING), "pending": PENDING}).all()


def snapshot_age(connection: Connection) -> int:
    """Return the age of the oldest snapshot in use, in transactions."""
    return int(connection.execute(_SNAPSHOT).scalar_one())


def days_partitioned_ahead(connection: Connection) -> int:
    """Return for how many days after today there are partitions; -1: none for today."""
    values = {"now": None, "most": FARTHEST, "parent": COMPLETED}
    found = connection.execute(_HORIZON, values).scalar()
    return FARTHEST if found is None else int(found)


_CREATED = text("""
    SELECT CASE WHEN has_sequence_privilege(CAST(CAST(:name AS regclass) AS oid), 'SELECT, USAGE')
        THEN coalesce(pg_sequence_last_value(CAST(:name AS regclass)), 0) END""")


def ids_given(connection: Connection) -> int | None:
    """Return how many task ids were ever given; None: this role may not read the sequence."""
    return connection.execute(_CREATED, {"name": table("task_pending_id_seq")}).scalar_one()  # type: ignore[no-any-return]
