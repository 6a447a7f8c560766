"""Trouble: what the rules of alerts ask of the pools and counters. Each answer is bounded."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.statistics.outcomes import CountedOutcome
from tasks_app.domain.tasks.states import State
from tasks_app.pool.operations.diagnostics import QUEUES
from tasks_app.pool.tables import (
    BATCH,
    BATCH_STEP,
    COUNT,
    COUNT_PART,
    NOW,
    PARTITION,
    PENDING,
    WORKER,
)

MOST_LOOKED_AT = 100
"""Due rows of one priority whose ages are looked at, in the order of the scan."""
ENDED_WITHIN = timedelta(minutes=2)
"""Counters are of whole minutes."""
_RUNS = ", ".join(str(int(o)) for o in CountedOutcome if o is not CountedOutcome.RELEASED)
_ENDED = f"""c.queue = q.queue AND c.outcome IN ({_RUNS})
    AND c.at > {NOW} - CAST(:within AS interval)"""
# What is parked, or held by a limit, waits for a reason.
_OLDEST = text(f"""
    SELECT q.queue, d.name, {NOW} - d.due_at AS waits,
        EXISTS (SELECT FROM {COUNT_PART} c WHERE {_ENDED})
            OR EXISTS (SELECT FROM {COUNT} c WHERE c.span = 1 AND {_ENDED}) AS moves
    FROM ({QUEUES}) AS q
    CROSS JOIN LATERAL (
        SELECT e.name, e.due_at FROM generate_series(0, 9) AS r(priority)
        CROSS JOIN LATERAL (
            SELECT p.name, p.due_at FROM {PENDING} p
            WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
              AND p.scan_at <= {NOW} AND p.due_at <= {NOW} AND p.enabled
              AND p.parked_kind IS NULL
            ORDER BY p.scan_at LIMIT {MOST_LOOKED_AT}) AS e
        ORDER BY e.due_at LIMIT 1) AS d
    ORDER BY q.queue
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
MOST_BATCHES = 100
MOST_COUNTED = 1_000_000
_PENDING = text(f"""
    SELECT count(*) FROM (SELECT FROM {PENDING} p WHERE p.state = '{State.PENDING}'
        AND (CAST(:queue AS text) IS NULL OR p.queue = :queue)
        AND (CAST(:name AS text) IS NULL OR p.name = :name) LIMIT :most) AS f
""")


class Oldest(NamedTuple):
    """The task of a queue that has been due for longest, of those that nothing holds back."""

    queue: str
    name: str
    waits: timedelta
    moves: bool
    """Whether runs of this queue have ended in the last minutes."""


class Stalled(NamedTuple):
    """A batch that goes on by its status, and has not moved."""

    id: int
    job: str


def oldest_due(connection: Connection, *, now: datetime | None = None) -> list[Oldest]:
    """Return one task for each queue that has one."""
    values = {"within": ENDED_WITHIN, "now": now}
    return [Oldest(*row) for row in connection.execute(_OLDEST, values)]


def silent_nodes(
    connection: Connection, within: timedelta, *, now: datetime | None = None
) -> dict[str, timedelta]:
    """Return workers of which no child was heard of within that time, and none said good-bye."""
    rows = connection.execute(_SILENT, {"within": within, "now": now})
    return {row.node: row.silence for row in rows}


def stalled_batches(
    connection: Connection, within: timedelta, *, now: datetime | None = None
) -> list[Stalled]:
    """Return running instances of which neither a step nor a partition changed within that time."""
    values = {"within": within, "most": MOST_BATCHES, "now": now}
    return [Stalled(*row) for row in connection.execute(_STALLED, values)]


def pending(connection: Connection, *, queue: str | None = None, name: str | None = None) -> int:
    """Count tasks that wait, due or not, up to ``MOST_COUNTED``."""
    values = {"queue": queue, "name": name, "most": MOST_COUNTED}
    return int(connection.execute(_PENDING, values).scalar_one())
