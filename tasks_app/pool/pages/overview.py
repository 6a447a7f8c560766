"""Overview: what waits and runs by queue and name, and what failed last."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.operations.diagnostics import QUEUES
from tasks_app.pool.tables import ERROR, NOW, PENDING

MOST = 10_000
"""Rows of a queue that are counted: nobody needs the rest, and it may be millions."""

_WAITING = text(f"""
    SELECT p.queue, p.name, count(*) AS pending,
        count(*) FILTER (WHERE p.due_at <= {NOW}) AS due,
        min(p.due_at) FILTER (WHERE p.due_at <= {NOW}) AS oldest
    FROM ({QUEUES}) AS q CROSS JOIN LATERAL (
        SELECT p.queue, p.name, p.due_at FROM {PENDING} p
        WHERE p.queue = q.queue AND p.state = '{State.PENDING}'
        ORDER BY p.priority, p.scan_at LIMIT {MOST + 1}) AS p
    GROUP BY p.queue, p.name
""")
_RUNNING = text(f"""
    SELECT queue, name, count(*) AS number FROM {PENDING}
    WHERE state = '{State.RUNNING}' GROUP BY queue, name
""")
_FAILED = text(f"""
    SELECT queue, name, count(*) AS number FROM (
        SELECT e.queue, e.name FROM {ERROR} e
        WHERE e.finished_at > {NOW} - CAST(:within AS interval) LIMIT {MOST + 1}) AS e
    GROUP BY queue, name
""")
_LAST = text(f"""
    SELECT id, name, queue, coalesce(error, '') AS error, finished_at FROM {ERROR}
    ORDER BY finished_at DESC LIMIT :most
""")


@dataclass(frozen=True, slots=True)
class Line:
    """Tasks of one name in one queue."""

    queue: str
    name: str
    pending: int
    due: int
    oldest_due_at: datetime | None
    running: int
    failed: int
    """Within the time that was asked for."""


@dataclass(frozen=True, slots=True)
class LastError:
    """A task of the error pool."""

    id: int
    name: str
    queue: str
    error: str
    finished_at: datetime


def lines(connection: Connection, within: timedelta, *, now: datetime | None = None) -> list[Line]:
    """Count by queue and name, those whose oldest task is due for longest first."""
    waiting = {(r.queue, r.name): r for r in connection.execute(_WAITING, {"now": now})}
    running = {(r.queue, r.name): r.number for r in connection.execute(_RUNNING)}
    values = {"within": within, "now": now}
    failed = {(r.queue, r.name): r.number for r in connection.execute(_FAILED, values)}
    found = []
    for queue, name in sorted({*waiting, *running, *failed}):
        row = waiting.get((queue, name))
        pending, due, oldest = row[2:] if row else (0, 0, None)
        runs, bad = running.get((queue, name), 0), failed.get((queue, name), 0)
        found.append(Line(queue, name, pending, due, oldest, runs, bad))
    return sorted(found, key=lambda each: (-each.due, -each.failed, -each.pending))


def last_errors(connection: Connection, most: int) -> list[LastError]:
    return [LastError(*row) for row in connection.execute(_LAST, {"most": most})]
