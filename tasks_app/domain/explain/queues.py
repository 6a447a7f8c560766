"""Why a queue stands still, in words."""

from __future__ import annotations

from tasks_app.domain.explain.words import exact
from tasks_app.domain.queues.queue import Queue


def standing(queue: Queue) -> str:
    """Say that it runs, or why it does not."""
    if queue.paused_since is not None:
        until = f" until {exact(queue.resume_at)}" if queue.resume_at else ""
        reason = f": {queue.reason}" if queue.reason else ""
        return f"paused since {exact(queue.paused_since)}{until}{reason}"
    if not queue.is_open:
        opens_at = queue.opens_at
        return f"closed until {exact(opens_at)}" if opens_at else "closed for a year and longer"
    return f"shut: others are {queue.shut}" if queue.shut else "runs"
