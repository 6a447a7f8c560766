"""What alert rules and reports read of pools, counters and schedules. Each answer is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, text

from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.flow_control.limits import WaitingKind
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.states import State
from tasks_app.pool import tables as t
from tasks_app.pool.fragments.conditions import QUEUES


class Oldest(NamedTuple):
    queue: str
    name: str
    waits: timedelta
    moves: bool  # whether runs of this queue have ended in the last two minutes


_RUNS = ", ".join(str(int(o)) for o in CountedOutcome if o is not CountedOutcome.RELEASED)
_ENDED = f"""c.queue = q.queue AND c.outcome IN ({_RUNS})
    AND c.at > {t.NOW} - interval '2 min'"""  # counters are of whole minutes
_MOVES = f"""(EXISTS (SELECT FROM {t.COUNT_PART} c WHERE {_ENDED})
    OR EXISTS (SELECT FROM {t.COUNT} c WHERE c.span = 1 AND {_ENDED}))"""


def oldest_free(connection: Connection) -> list[Oldest]:
    """Return each queue's longest due task of those that no limit and no parking holds back."""
    which = f"p.scan_at <= {t.NOW} AND p.enabled AND p.parked_kind IS NULL"
    return _oldest(connection, _MOVES, which)


def oldest_due(connection: Connection) -> list[Oldest]:
    """Return each queue's longest due task, also if it is parked; ``moves`` is always False."""
    # A row is parked for 30 s at most.
    return _oldest(connection, "false", f"p.scan_at <= {t.NOW} + interval '30 s'")


def _oldest(connection: Connection, moves: str, which: str) -> list[Oldest]:
    """Of each priority it reads the ages of 100 rows, in the order of the scan."""
    query = text(f"""
        SELECT q.queue, d.name, {t.NOW} - d.due_at AS waits, {moves} AS moves
        FROM ({QUEUES}) AS q
        CROSS JOIN LATERAL (
            SELECT e.name, e.due_at FROM generate_series(0, 9) AS r(priority)
            CROSS JOIN LATERAL (
                SELECT p.name, p.due_at FROM {t.PENDING} p
                WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
                  AND {which} AND p.due_at <= {t.NOW}
                ORDER BY p.scan_at LIMIT 100) AS e
            ORDER BY e.due_at LIMIT 1) AS d
        ORDER BY q.queue
    """)
    return [Oldest(*row) for row in connection.execute(query, {"now": None})]


def oldest_without_handler(connection: Connection) -> list[Oldest]:
    """Return the oldest by queue and name of the tasks that no worker has a handler for."""
    query = text(f"""
        SELECT queue, name, {t.NOW} - min(due_at) AS waits, false AS moves
        FROM (SELECT p.queue, p.name, p.due_at FROM {t.PENDING} p
              WHERE p.state = '{State.PENDING}' AND p.parked_kind = '{WaitingKind.HANDLER}'
                AND p.due_at <= {t.NOW} LIMIT 20000) AS u
        GROUP BY queue, name ORDER BY queue, name
    """)
    return [Oldest(*row) for row in connection.execute(query, {"now": None})]


def silent_nodes(connection: Connection, within: timedelta) -> dict[str, timedelta]:
    """Return workers that did not stop, but sent no heartbeat within that time."""
    query = text(f"""
        SELECT node, {t.NOW} - max(seen_at) AS silence FROM {t.WORKER}
        GROUP BY node HAVING max(seen_at) <= {t.NOW} - CAST(:within AS interval) ORDER BY node
    """)
    rows = connection.execute(query, {"within": within, "now": None})
    return {row.node: row.silence for row in rows}


class Burst(NamedTuple):
    """Errors of one cause; ``kind`` is the class alone, since a message has values."""

    fingerprint: str
    number: int
    kind: str
    names: list[str]
    queues: list[str]


def bursts(connection: Connection, least: int, within: timedelta) -> list[Burst]:
    """Return causes of at least so many failures, without those that are marked as known."""
    # It reads the newest 20,000 failed tasks.
    query = text(f"""
        SELECT encode(b.fingerprint, 'hex') AS fingerprint, b.number,
            coalesce(f.kind, b.kind) AS kind, b.names, b.queues
        FROM (
            SELECT e.fingerprint, count(*) AS number, max(split_part(e.error, ':', 1)) AS kind,
                array_agg(DISTINCT e.name) AS names, array_agg(DISTINCT e.queue) AS queues
            FROM (SELECT fingerprint, error, name, queue FROM {t.ERROR}
                  WHERE finished_at > {t.NOW} - CAST(:within AS interval)
                  ORDER BY finished_at DESC LIMIT 20000) AS e
            WHERE e.fingerprint IS NOT NULL GROUP BY e.fingerprint) AS b
        LEFT JOIN {t.FINGERPRINT} f ON f.fingerprint = b.fingerprint
        WHERE b.number >= :least
          AND NOT (f.known_by IS NOT NULL AND coalesce(f.known_until > {t.NOW}, true))
        ORDER BY b.number DESC, b.fingerprint LIMIT 100
    """)
    rows = connection.execute(query, {"within": within, "least": least, "now": None})
    return [Burst(*row) for row in rows]


def stalled_batches(connection: Connection, within: timedelta) -> Sequence[Row[Any]]:
    """Return running instances of which no step and no partition has changed within that time."""
    query = text(f"""
        SELECT b.id, b.job FROM {t.BATCH} b
        WHERE b.ended_at IS NULL AND b.status = '{BatchStatus.RUNNING}'
          AND b.started_at < {t.NOW} - CAST(:within AS interval)
          AND NOT EXISTS (SELECT FROM {t.PARTITION} t
            WHERE t.batch_id = b.id AND t.changed_at >= {t.NOW} - CAST(:within AS interval))
          AND NOT EXISTS (SELECT FROM {t.BATCH_STEP} s WHERE s.batch_id = b.id
            AND greatest(s.started_at, s.ended_at) >= {t.NOW} - CAST(:within AS interval))
        ORDER BY b.id LIMIT 100
    """)
    return connection.execute(query, {"within": within, "now": None}).all()


def more_than(
    connection: Connection, limit: int, *, queue: str | None = None, name: str | None = None
) -> bool:
    """Whether more tasks wait, due or not. By name it reads the pool: no index has it."""
    if name is not None:
        connection.execute(text("SET LOCAL enable_seqscan = on"))
    column = "queue" if name is None else "name"
    query = text(f"""
        SELECT count(*) FROM (SELECT FROM {t.PENDING} p
            WHERE p.state = '{State.PENDING}' AND p.{column} = :value LIMIT :most) AS f
    """)
    values = {"value": queue if name is None else name, "most": limit + 1}
    return int(connection.execute(query, values).scalar_one()) > limit


@dataclass(frozen=True, slots=True)
class ScheduleTrouble:
    name: str
    fired: int
    late: int  # of these, those that fired late
    latest_s: float
    skipped: int
    last_outcome: str | None
    broken: bool
    late_now_s: float | None  # how long ago it should have fired; None: it is on time


MOST = 50


def schedule_trouble(
    connection: Connection, since: datetime, patience: timedelta, *, now: datetime | None = None
) -> list[ScheduleTrouble]:
    """Return at most MOST; a delay below ``patience`` is not late."""
    values = {"since": since, "patience": patience, "now": now}
    query = text(f"""
        SELECT * FROM (
            SELECT s.name, count(f.fire_at) AS fired,
                count(f.fire_at) FILTER (
                    WHERE f.fired_at - f.fire_at > CAST(:patience AS interval)) AS late,
                CAST(coalesce(extract(epoch FROM max(f.fired_at - f.fire_at)), 0) AS float8)
                    AS latest_s,
                count(f.fire_at) FILTER (WHERE f.outcome = 'skipped') AS skipped, s.last_outcome,
                s.enabled AND s.remark IS NOT NULL AS broken,
                CASE WHEN s.enabled AND s.next_run_at < {t.NOW} - CAST(:patience AS interval)
                    THEN CAST(extract(epoch FROM {t.NOW} - s.next_run_at) AS float8)
                    END AS late_now_s
            FROM {t.SCHEDULE} s
            LEFT JOIN {t.FIRE} f ON f.schedule_id = s.id AND f.fired_at >= :since
            GROUP BY s.id) AS t
        WHERE late > 0 OR skipped > 0 OR broken OR late_now_s IS NOT NULL OR last_outcome = 'missed'
        ORDER BY late_now_s DESC NULLS LAST, broken DESC, late DESC, name LIMIT {MOST}
    """)
    return [ScheduleTrouble(*row) for row in connection.execute(query, values)]
