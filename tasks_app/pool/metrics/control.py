"""What holds work back on purpose, and who does the work: limits in use, schedules, workers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import LIMIT, NOW, PENDING, SCHEDULE, WORKER

MOST_NAMED = 100
"""Limits that are shown, by name: operators make them, so there may be many."""

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
    FROM {LIMIT} l WHERE l.most IS NOT NULL ORDER BY l.kind, l.target LIMIT :most
""")
_SCHEDULES = text(f"""
    SELECT count(*) FILTER (WHERE enabled AND remark IS NULL) AS enabled,
        count(*) FILTER (WHERE NOT enabled) AS disabled,
        count(*) FILTER (WHERE enabled AND remark IS NOT NULL) AS broken,
        count(*) FILTER (WHERE enabled AND next_run_at < {NOW} - CAST(:patience AS interval))
            AS missed,
        coalesce(extract(epoch FROM max({NOW} - next_run_at) FILTER (
            WHERE enabled AND next_run_at < {NOW})), 0) AS late
    FROM {SCHEDULE}
""")
_WORKERS = text(f"""
    SELECT count(*) FILTER (WHERE live AND queues <> '{{}}') AS live,
        count(*) FILTER (WHERE live AND queues = '{{}}') AS stopping,
        count(*) FILTER (WHERE NOT live) AS silent,
        coalesce(sum(threads) FILTER (WHERE live AND queues <> '{{}}'), 0) AS threads,
        coalesce(extract(epoch FROM max(silence)), 0) AS silence
    FROM (SELECT queues, threads, {NOW} - seen_at AS silence,
              seen_at > {NOW} - CAST(:within AS interval) AS live FROM {WORKER}) AS w
""")
_SERVED = text(f"""
    SELECT q.queue, count(*) AS number FROM {WORKER} w CROSS JOIN unnest(w.queues) AS q(queue)
    WHERE w.seen_at > {NOW} - CAST(:within AS interval) GROUP BY q.queue
""")


@dataclass(frozen=True, slots=True)
class LimitInUse:
    """A limit, and how many tasks run under it: of a key's, under the fullest one."""

    kind: str
    target: str
    most: int
    running: int


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    """How many there are of each kind; seconds by which the latest is late."""

    enabled: int
    disabled: int
    broken: int
    missed: int
    late: float


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """Children by state, and the longest silence of one."""

    live: int
    stopping: int
    silent: int
    threads: int
    silence: float


def limits(connection: Connection) -> list[LimitInUse]:
    return [LimitInUse(*row) for row in connection.execute(_LIMITS, {"most": MOST_NAMED})]


def schedules(
    connection: Connection, patience: timedelta, *, now: datetime | None = None
) -> ScheduleCounts:
    values = {"now": now, "patience": patience}
    return ScheduleCounts(*connection.execute(_SCHEDULES, values).one())


def workers(
    connection: Connection, within: timedelta, *, now: datetime | None = None
) -> WorkerCounts:
    """Count children; who was not heard of for longer than ``within`` is silent."""
    return WorkerCounts(*connection.execute(_WORKERS, {"now": now, "within": within}).one())


def served(
    connection: Connection, within: timedelta, *, now: datetime | None = None
) -> dict[str, int]:
    """Return by how many living children each queue is served."""
    values = {"now": now, "within": within}
    return {row.queue: row.number for row in connection.execute(_SERVED, values)}
