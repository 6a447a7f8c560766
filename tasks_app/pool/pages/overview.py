"""Overview: what waits, runs and has failed, by queue and name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.operations.diagnostics import QUEUES
from tasks_app.pool.tables import ERROR, NOW, PENDING

MOST = 10_000
"""Rows of a queue that are counted: nobody needs the rest, and it may be millions."""

AT_ONCE = 150_000
"""Up to so many waiting tasks are read in one pass, which costs a quarter of a pass per queue."""

_COUNTED = f"""
    p.queue, p.name, count(*) AS pending, count(*) FILTER (WHERE p.due_at <= {NOW}) AS due,
    min(p.due_at) FILTER (WHERE p.due_at <= {NOW}) AS oldest
"""
_ALL_WAITING = text(f"""
    SELECT {_COUNTED} FROM (
        SELECT p.queue, p.name, p.due_at FROM {PENDING} p
        WHERE p.state = '{State.PENDING}' LIMIT {AT_ONCE + 1}) AS p
    GROUP BY p.queue, p.name
""")
_WAITING_IN = text(f"""
    SELECT {_COUNTED} FROM unnest(CAST(:queues AS text[])) AS q(queue) CROSS JOIN LATERAL (
        SELECT p.queue, p.name, p.due_at FROM {PENDING} p
        WHERE p.queue = q.queue AND p.state = '{State.PENDING}'
        ORDER BY p.priority, p.scan_at LIMIT {MOST + 1}) AS p
    GROUP BY p.queue, p.name
""")
_QUEUES = text(QUEUES)
_RUNNING = text(f"""
    SELECT queue, name, count(*) AS number FROM {PENDING}
    WHERE state = '{State.RUNNING}' AND (CAST(:queue AS text) IS NULL OR queue = :queue)
    GROUP BY queue, name
""")
_FAILED = text(f"""
    SELECT queue, name, count(*) AS number FROM (
        SELECT e.queue, e.name FROM {ERROR} e
        WHERE e.finished_at > {NOW} - CAST(:within AS interval)
          AND (CAST(:queue AS text) IS NULL OR e.queue = :queue) LIMIT {MOST + 1}) AS e
    GROUP BY queue, name
""")


@dataclass(frozen=True, slots=True)
class NameLine:
    """Tasks of one name in one queue."""

    queue: str
    name: str
    pending: int
    due: int
    oldest_due_at: datetime | None
    running: int
    failed: int
    """Within the time that was asked for."""


def lines(
    connection: Connection,
    within: timedelta,
    *,
    queue: str | None = None,
    now: datetime | None = None,
) -> list[NameLine]:
    """Count by queue and name, of one queue or of all.

    Those of which most are due come first.
    """
    values = {"within": within, "queue": queue, "now": now}
    waiting = {(r.queue, r.name): r for r in _waiting(connection, queue, now)}
    running = {(r.queue, r.name): r.number for r in connection.execute(_RUNNING, values)}
    failed = {(r.queue, r.name): r.number for r in connection.execute(_FAILED, values)}
    found = []
    for place in sorted({*waiting, *running, *failed}):
        row = waiting.get(place)
        pending, due, oldest = (row.pending, row.due, row.oldest) if row else (0, 0, None)
        runs, bad = running.get(place, 0), failed.get(place, 0)
        found.append(NameLine(*place, pending, due, oldest, runs, bad))
    return sorted(found, key=lambda each: (-each.due, -each.failed, -each.pending))


def _waiting(connection: Connection, queue: str | None, now: datetime | None) -> list[Row[Any]]:
    """Count what waits; of a queue with more than MOST only those that go first."""
    if queue is not None:
        return [*connection.execute(_WAITING_IN, {"queues": [queue], "now": now})]
    rows = connection.execute(_ALL_WAITING, {"now": now}).all()
    numbers: Counter[str] = Counter()
    for row in rows:
        numbers[row.queue] += row.pending
    crowded = [queue for queue, number in numbers.items() if number > MOST]
    if numbers.total() > AT_ONCE:
        crowded = list(connection.execute(_QUEUES).scalars())
    counted = [row for row in rows if row.queue not in crowded]
    if not crowded:
        return counted
    return [*counted, *connection.execute(_WAITING_IN, {"queues": crowded, "now": now})]
