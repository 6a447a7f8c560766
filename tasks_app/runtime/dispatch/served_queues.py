"""Served queues: who carries out tasks of each queue, and how many messages there is room for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.pool.fragments.conditions import standing_still
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.flow_control.fair_queues import Fairness

SPARE_MESSAGES = 4
"""Messages per queue beyond two for each thread: what waits in the broker while the scan sleeps."""
MOST_AHEAD = 20_000
"""Ids of a queue that wait in the broker at most: each pass reads past them."""


@dataclass(slots=True)
class ServedQueue:
    """A queue that a live child serves and that does not stand still."""

    queue: str
    threads: int = 0
    names: set[str] = field(default_factory=set)
    fair: bool = False
    """Little of it is out, so that new tasks wait shortly."""

    @property
    def most_messages(self) -> int:
        """How many messages of the queue may wait in the broker."""
        return 2 * self.threads + (0 if self.fair else SPARE_MESSAGES)

    def largest(self, settings: Settings) -> int:
        """Return how many ids a message may have."""
        return min(settings.message_size, max(1, MOST_AHEAD // self.most_messages))


def served_queues(
    connection: Connection, settings: Settings, fairness: Fairness, *, now: datetime | None = None
) -> dict[str, ServedQueue]:
    """Return the queues to publish for."""
    served: dict[str, ServedQueue] = {}
    stopped = standing_still(connection, now=now)
    if EVERY_QUEUE in stopped:
        return served
    for worker in heartbeats.live(connection, settings.lease, now=now):
        for queue in set(worker.queues) - stopped:
            found = served.setdefault(queue, ServedQueue(queue))
            found.threads += worker.threads
            found.names.update(worker.handlers)
    for queue in fairness.among(connection, served):
        served[queue].fair = True
    return served
