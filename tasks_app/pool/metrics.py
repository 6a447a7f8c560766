"""What waits, runs and has failed, by queue; counted up to a bound, so that no backlog is dear."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import ERROR, NOW, PENDING

MOST_COUNTED = 100_000
"""Tasks of one queue: about 15 ms in the scan's index."""
MOST_LOOKED_AT = 100
"""Due rows of one priority whose ages are looked at, in the order of the scan."""
MOST_PARKED = MOST_FAILED = 20_000

_FIRST = f"SELECT min(queue) AS queue FROM {PENDING} WHERE state = '{State.PENDING}'"
# The columns of both counts stand in the index of the scan: the rows themselves are not read.
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
    WHERE q.queue IS NOT NULL
""")
_PARKED = text(f"""
    SELECT queue, parked_kind, count(*) AS number,
        count(*) FILTER (WHERE scan_at > {NOW}) AS aside,
        extract(epoch FROM {NOW} - min(due_at)) AS oldest
    FROM (SELECT queue, parked_kind, scan_at, due_at FROM {PENDING}
          WHERE state = '{State.PENDING}' AND parked_kind IS NOT NULL AND due_at <= {NOW}
          LIMIT :most) AS p
    GROUP BY queue, parked_kind
""")
_RUNNING = text(f"""
    SELECT queue, count(*) AS number,
        extract(epoch FROM {NOW} - min(started_at)) AS longest,
        count(*) FILTER (WHERE lease_until < {NOW}) AS overdue,
        extract(epoch FROM greatest({NOW} - min(lease_until), interval '0')) AS overdue_for
    FROM {PENDING} WHERE state = '{State.RUNNING}' GROUP BY queue
""")
_FAILED = text(f"""
    SELECT queue, count(*) AS number,
        count(*) FILTER (WHERE finished_at > {NOW} - CAST(:lately AS interval)) AS lately
    FROM (SELECT queue, finished_at FROM {ERROR} ORDER BY finished_at DESC LIMIT :most) AS e
    GROUP BY queue
""")


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """PENDING tasks of a queue; ages in seconds."""

    queue: str
    pending: int
    due: int
    """The scan may take them now; parked ones are counted by :func:`parked`."""
    oldest: float | None


@dataclass(frozen=True, slots=True)
class Parked:
    """Due tasks of a queue that are left alone for one kind of reason."""

    queue: str
    kind: str
    number: int
    aside: int
    """Of these, how many the scan passes over just now: :class:`Waiting` has them not as due."""
    oldest: float


@dataclass(frozen=True, slots=True)
class Running:
    """RUNNING tasks of a queue, and how long the oldest lease has been over."""

    queue: str
    number: int
    longest: float | None
    overdue: int
    overdue_for: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Tasks of a queue in the error pool."""

    queue: str
    number: int
    lately: int


def waiting(connection: Connection, *, now: datetime | None = None) -> list[QueueBacklog]:
    values = {"now": now, "most": MOST_COUNTED, "first": MOST_LOOKED_AT}
    return [QueueBacklog(*row) for row in connection.execute(_WAITING, values)]


def parked(connection: Connection, *, now: datetime | None = None) -> list[Parked]:
    values = {"now": now, "most": MOST_PARKED}
    return [Parked(*row) for row in connection.execute(_PARKED, values)]


def running(connection: Connection, *, now: datetime | None = None) -> list[Running]:
    return [Running(*row) for row in connection.execute(_RUNNING, {"now": now})]


def failed(
    connection: Connection, lately: timedelta, *, now: datetime | None = None
) -> list[Failed]:
    values = {"now": now, "most": MOST_FAILED, "lately": lately}
    return [Failed(*row) for row in connection.execute(_FAILED, values)]
