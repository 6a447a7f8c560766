"""Pause: an operator stops a queue. Nothing of it is published or claimed until it is resumed.

The rows stay as they are, so they run in their old order as soon as the queue does. What runs
already, runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.admission import check_queue
from tasks_app.domain.causes import clean
from tasks_app.pool.tables import EVERY_QUEUE, NOW, PAUSE

LONGEST_REASON = 300

_PAUSE = text(f"""
    INSERT INTO {PAUSE} (queue, since, reason) VALUES (:queue, {NOW}, :reason)
    ON CONFLICT (queue) DO NOTHING RETURNING queue
""")
_RESUME = text(f"""
    DELETE FROM {PAUSE} WHERE queue = :queue OR :queue = '{EVERY_QUEUE}' RETURNING queue
""")
_PAUSED = text(f"SELECT queue, since, reason FROM {PAUSE} ORDER BY queue")


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue that stands still."""

    queue: str
    """``*``: every queue."""
    since: datetime
    reason: str


def checked_queue(queue: str) -> str:
    """Return the name of one queue, or ``*`` for all.

    Raises:
        InvalidTaskError: it is neither.
    """
    return queue if queue == EVERY_QUEUE else check_queue(queue)


def pause(
    connection: Connection, queue: str, reason: str = "", *, now: datetime | None = None
) -> bool:
    """Stop a queue, or all with ``*``; False: it was paused already, since and reason stay.

    Raises:
        InvalidTaskError: it is no queue's name.
    """
    values = {"queue": checked_queue(queue), "reason": clean(reason, LONGEST_REASON), "now": now}
    return connection.execute(_PAUSE, values).first() is not None


def resume(connection: Connection, queue: str) -> Sequence[str]:
    """Let a queue run again; ``*`` lets all of them. Return what was paused.

    Raises:
        InvalidTaskError: it is no queue's name.
    """
    return connection.execute(_RESUME, {"queue": checked_queue(queue)}).scalars().all()


def paused(connection: Connection) -> list[Pause]:
    """Return what is paused."""
    return [Pause(*row) for row in connection.execute(_PAUSED)]
