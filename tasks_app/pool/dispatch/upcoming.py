"""What becomes due soon, so that the leader wakes up in time. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.conditions import runs
from tasks_app.pool.tables import NOW, PENDING, has_pending


class Upcoming(NamedTuple):
    """A row that becomes due soon."""

    id: int
    queue: str
    due_in_s: float
    """From the statement on, by the database's clock."""


# A few rows of the index per queue and priority. One that is parked has been due for a while. To
# look behind such rows would read all of them, however many there are.
_FROM = f"{NOW} - CAST(:since AS interval)"
_UPCOMING = text(f"""
    SELECT p.id, q.queue, CAST(EXTRACT(EPOCH FROM p.scan_at - {NOW}) AS float) AS due_in_s
    FROM (SELECT q.queue FROM unnest(CAST(:queues AS text[])) AS q(queue)
          WHERE {runs("q.queue")} AND {has_pending("q.queue", _FROM)} OFFSET 0) AS q
    CROSS JOIN generate_series(0, 9) AS r(priority)
    CROSS JOIN LATERAL (
        SELECT p.id, p.scan_at, p.due_at FROM {PENDING} p
        WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
          AND p.scan_at > {_FROM} AND p.scan_at <= {NOW} + CAST(:within AS interval)
        ORDER BY p.scan_at, p.id LIMIT :most) AS p
    WHERE p.due_at > {_FROM}
    ORDER BY p.scan_at, p.id LIMIT :most
""")


def upcoming(
    connection: Connection,
    queues: Sequence[str],
    within: timedelta,
    most: int = 10,
    *,
    since: timedelta = timedelta(0),
    now: datetime | None = None,
) -> list[Upcoming]:
    """Return up to ``most`` rows that become due ``within`` this time, nearest first.

    Rows that became due ``since`` the caller's last look are among them: it has not seen those. A
    queue that stands still has none: to wake up for it would be in vain.
    """
    values = {"queues": list(queues), "within": within, "most": most, "since": since, "now": now}
    return [Upcoming(*row) for row in connection.execute(_UPCOMING, values)]
