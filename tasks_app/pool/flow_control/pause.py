"""Pause: an operator stops a queue. Nothing of it is published or claimed until it is resumed.

The clock may do that, too. The rows stay as they are, so they run in their old order as soon as
the queue does. What runs already, runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.error_text import clean
from tasks_app.domain.tasks.names import check_queue
from tasks_app.pool.fragments.conditions import STOPS
from tasks_app.pool.tables import EVERY_QUEUE, NOW, PAUSE

LONGEST_REASON = 300

_PAUSE = text(f"""
    INSERT INTO {PAUSE} (queue, since, reason, resume_at)
    VALUES (:queue, {NOW}, :reason,
        coalesce(CAST(:until AS timestamptz), {NOW} + CAST(:wait AS interval)))
    ON CONFLICT (queue) DO NOTHING RETURNING queue
""")
_FORGET = text(f"DELETE FROM {PAUSE} z WHERE z.queue = :queue AND NOT {STOPS}")
_RESUME = text(f"""
    DELETE FROM {PAUSE} z WHERE z.queue = :queue OR :queue = '{EVERY_QUEUE}'
    RETURNING z.queue, {STOPS} AS stopped
""")
_PAUSED = text(f"""
    SELECT z.queue, z.since, z.reason, z.resume_at FROM {PAUSE} z WHERE {STOPS} ORDER BY z.queue
""")


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue that stands still."""

    queue: str
    """``*``: every queue."""
    since: datetime
    reason: str
    resume_at: datetime | None = None
    """When it ends by itself; None: when somebody ends it."""


def checked_queue(queue: str) -> str:
    """Return the name of one queue, or ``*`` for all.

    Raises:
        InvalidTaskError: it is neither.
    """
    return queue if queue == EVERY_QUEUE else check_queue(queue)


def pause(
    connection: Connection,
    queue: str,
    reason: str = "",
    *,
    resume_at: datetime | None = None,
    resume_in: timedelta | None = None,
    now: datetime | None = None,
) -> bool:
    """Stop a queue, or all with ``*``; False: it was paused already, and all of that stays.

    ``resume_at``, or ``resume_in`` from now on: it runs again by itself then.

    Raises:
        InvalidTaskError: it is no queue's name.
    """
    values = {
        "queue": checked_queue(queue),
        "reason": clean(reason, LONGEST_REASON),
        "until": resume_at,
        "wait": resume_in,
        "now": now,
    }
    connection.execute(_FORGET, {"queue": queue, "now": now})
    return connection.execute(_PAUSE, values).first() is not None


def resume(connection: Connection, queue: str, *, now: datetime | None = None) -> Sequence[str]:
    """Let a queue run again; ``*`` lets all of them. Return what was paused.

    Raises:
        InvalidTaskError: it is no queue's name.
    """
    rows = connection.execute(_RESUME, {"queue": checked_queue(queue), "now": now})
    return [row.queue for row in rows if row.stopped]


def paused(connection: Connection, *, now: datetime | None = None) -> list[Pause]:
    return [Pause(*row) for row in connection.execute(_PAUSED, {"now": now})]
