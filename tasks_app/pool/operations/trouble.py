"""What alert rules and reports ask of pools, counters and schedules. Each answer is bounded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.flow_control.limits import WaitingKind
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.states import State
from tasks_app.pool.operations.diagnostics import QUEUES
from tasks_app.pool.tables import (
    BATCH,
    BATCH_STEP,
    COUNT,
    COUNT_PART,
    ERROR,
    FINGERPRINT,
    FIRE,
    NOW,
    PARTITION,
    PENDING,
    SCHEDULE,
    WORKER,
)

MOST_LOOKED_AT = 100  # due rows of one priority whose ages are looked at, in the order of the scan
ENDED_WITHIN = timedelta(minutes=2)  # counters are of whole minutes
MOST_PARKED = 20_000
MOST_ERRORS = 20_000  # the newest failed tasks that are looked at
_RUNS = ", ".join(str(int(o)) for o in CountedOutcome if o is not CountedOutcome.RELEASED)
_ENDED = f"""c.queue = q.queue AND c.outcome IN ({_RUNS})
    AND c.at > {NOW} - CAST(:within AS interval)"""


def _oldest(moves: str, which: str) -> str:
    return f"""
    SELECT q.queue, d.name, {NOW} - d.due_at AS waits, {moves} AS moves
    FROM ({QUEUES}) AS q
    CROSS JOIN LATERAL (
        SELECT e.name, e.due_at FROM generate_series(0, 9) AS r(priority)
        CROSS JOIN LATERAL (
            SELECT p.name, p.due_at FROM {PENDING} p
            WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
              AND {which} AND p.due_at <= {NOW}
            ORDER BY p.scan_at LIMIT {MOST_LOOKED_AT}) AS e
        ORDER BY e.due_at LIMIT 1) AS d
    ORDER BY q.queue"""


_MOVES = f"""(EXISTS (SELECT FROM {COUNT_PART} c WHERE {_ENDED})
    OR EXISTS (SELECT FROM {COUNT} c WHERE c.span = 1 AND {_ENDED}))"""
# What is parked, or held by a limit, waits for a reason. A row stands aside for 30 s at most.
_FREE = text(
    _oldest(_MOVES, f"p.scan_at <= {NOW} AND p.enabled AND p.parked_kind IS NULL"),
)
_OLDEST = text(_oldest("false", f"p.scan_at <= {NOW} + interval '30 s'"))
_UNKNOWN = text(f"""
    SELECT queue, name, {NOW} - min(due_at) AS waits, false AS moves
    FROM (SELECT p.queue, p.name, p.due_at FROM {PENDING} p
          WHERE p.state = '{State.PENDING}' AND p.parked_kind = '{WaitingKind.HANDLER}'
            AND p.due_at <= {NOW} LIMIT {MOST_PARKED}) AS u
    GROUP BY queue, name ORDER BY queue, name
""")
_SILENT = text(f"""
    SELECT node, {NOW} - max(seen_at) AS silence FROM {WORKER}
    GROUP BY node HAVING max(seen_at) <= {NOW} - CAST(:within AS interval) ORDER BY node
""")
_STALLED = text(f"""
    SELECT b.id, b.job FROM {BATCH} b
    WHERE b.ended_at IS NULL AND b.status = '{BatchStatus.RUNNING}'
      AND b.started_at < {NOW} - CAST(:within AS interval)
      AND NOT EXISTS (SELECT FROM {PARTITION} t
        WHERE t.batch_id = b.id AND t.changed_at >= {NOW} - CAST(:within AS interval))
      AND NOT EXISTS (SELECT FROM {BATCH_STEP} s WHERE s.batch_id = b.id
        AND greatest(s.started_at, s.ended_at) >= {NOW} - CAST(:within AS interval))
    ORDER BY b.id LIMIT :most
""")
_BURSTS = text(f"""
    SELECT encode(b.fingerprint, 'hex') AS fingerprint, b.number, coalesce(f.kind, b.kind) AS kind,
        b.names, b.queues
    FROM (
        SELECT e.fingerprint, count(*) AS number, max(split_part(e.error, ':', 1)) AS kind,
            array_agg(DISTINCT e.name) AS names, array_agg(DISTINCT e.queue) AS queues
        FROM (SELECT fingerprint, error, name, queue FROM {ERROR}
              WHERE finished_at > {NOW} - CAST(:within AS interval)
              ORDER BY finished_at DESC LIMIT {MOST_ERRORS}) AS e
        WHERE e.fingerprint IS NOT NULL GROUP BY e.fingerprint) AS b
    LEFT JOIN {FINGERPRINT} f ON f.fingerprint = b.fingerprint
    WHERE b.number >= :least
      AND NOT (f.known_by IS NOT NULL AND coalesce(f.known_until > {NOW}, true))
    ORDER BY b.number DESC, b.fingerprint LIMIT :most
""")
MOST_BATCHES = MOST_BURSTS = 100
_BY_QUEUE = text(f"""
    SELECT count(*) FROM (SELECT FROM {PENDING} p
        WHERE p.state = '{State.PENDING}' AND p.queue = :queue LIMIT :most) AS f
""")
_BY_NAME = text(f"""
    SELECT count(*) FROM (SELECT FROM {PENDING} p
        WHERE p.state = '{State.PENDING}' AND p.name = :name LIMIT :most) AS f
""")
_READ_THROUGH = text("SET LOCAL enable_seqscan = on")


class Oldest(NamedTuple):
    """A task of a queue that has been due for long."""

    queue: str
    name: str
    waits: timedelta
    moves: bool  # whether runs of this queue have ended in the last minutes


class Burst(NamedTuple):
    """Errors of one cause; the class alone, since a message has values."""

    fingerprint: str
    number: int
    kind: str
    names: list[str]
    queues: list[str]


class Stalled(NamedTuple):
    """A batch that goes on by its status, and has not moved."""

    id: int
    job: str


def oldest_free(connection: Connection, *, now: datetime | None = None) -> list[Oldest]:
    """Return for each queue the one that is due for longest, of those that nothing holds back."""
    values = {"within": ENDED_WITHIN, "now": now}
    return [Oldest(*row) for row in connection.execute(_FREE, values)]


def oldest_due(connection: Connection, *, now: datetime | None = None) -> list[Oldest]:
    """Return the same of all that the scan may take soon; whether they move is not looked at."""
    return [Oldest(*row) for row in connection.execute(_OLDEST, {"now": now})]


def unknown(connection: Connection, *, now: datetime | None = None) -> list[Oldest]:
    """Return the same by queue and name of those that were parked since no worker knew them."""
    return [Oldest(*row) for row in connection.execute(_UNKNOWN, {"now": now})]


def silent_nodes(
    connection: Connection, within: timedelta, *, now: datetime | None = None
) -> dict[str, timedelta]:
    """Return workers of which no child was heard of within that time, and none said good-bye."""
    rows = connection.execute(_SILENT, {"within": within, "now": now})
    return {row.node: row.silence for row in rows}


def bursts(
    connection: Connection, least: int, within: timedelta, *, now: datetime | None = None
) -> list[Burst]:
    """Return causes by which so many tasks failed, without those that are marked as known."""
    values = {"within": within, "least": least, "most": MOST_BURSTS, "now": now}
    return [Burst(*row) for row in connection.execute(_BURSTS, values)]


def stalled_batches(
    connection: Connection, within: timedelta, *, now: datetime | None = None
) -> list[Stalled]:
    """Return running instances of which neither a step nor a partition changed within that time."""
    values = {"within": within, "most": MOST_BATCHES, "now": now}
    return [Stalled(*row) for row in connection.execute(_STALLED, values)]


def more_than(
    connection: Connection, limit: int, *, queue: str | None = None, name: str | None = None
) -> bool:
    """Whether more tasks wait, due or not. By name it reads the pool: no index has it."""
    if name is None:
        found = connection.execute(_BY_QUEUE, {"queue": queue, "most": limit + 1})
    else:
        connection.execute(_READ_THROUGH)
        found = connection.execute(_BY_NAME, {"name": name, "most": limit + 1})
    return int(found.scalar_one()) > limit


MOST = 50


@dataclass(frozen=True, slots=True)
class ScheduleTrouble:
    """A schedule, and what was wrong with it since an instant."""

    name: str
    fired: int
    late: int  # of these, those that fired late
    latest_s: float
    skipped: int
    last_outcome: str | None
    broken: bool
    late_now_s: float | None  # how long ago it should have fired; None: it is in time


_TROUBLE = text(f"""
    SELECT * FROM (
        SELECT s.name, count(f.fire_at) AS fired,
            count(f.fire_at) FILTER (
                WHERE f.fired_at - f.fire_at > CAST(:patience AS interval)) AS late,
            CAST(coalesce(extract(epoch FROM max(f.fired_at - f.fire_at)), 0) AS float8)
                AS latest_s,
            count(f.fire_at) FILTER (WHERE f.outcome = 'skipped') AS skipped, s.last_outcome,
            s.enabled AND s.remark IS NOT NULL AS broken,
            CASE WHEN s.enabled AND s.next_run_at < {NOW} - CAST(:patience AS interval)
                THEN CAST(extract(epoch FROM {NOW} - s.next_run_at) AS float8) END AS late_now_s
        FROM {SCHEDULE} s LEFT JOIN {FIRE} f ON f.schedule_id = s.id AND f.fired_at >= :since
        GROUP BY s.id) AS t
    WHERE late > 0 OR skipped > 0 OR broken OR late_now_s IS NOT NULL OR last_outcome = 'missed'
    ORDER BY late_now_s DESC NULLS LAST, broken DESC, late DESC, name LIMIT {MOST}
""")


def schedule_trouble(
    connection: Connection, since: datetime, patience: timedelta, *, now: datetime | None = None
) -> list[ScheduleTrouble]:
    """Return at most MOST; less than ``patience`` is not late."""
    values = {"since": since, "patience": patience, "now": now}
    return [ScheduleTrouble(*row) for row in connection.execute(_TROUBLE, values)]
