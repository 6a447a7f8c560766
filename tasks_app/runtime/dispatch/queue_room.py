"""Queue room: how many more messages of each queue may be under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.pool.dispatch import ledger
from tasks_app.pool.dispatch.ledger import Dispatch
from tasks_app.pool.dispatch.scan import DueRows
from tasks_app.pool.fragments.availability import standing_still
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.dispatch.queue_throughput import QueueThroughput
from tasks_app.runtime.flow_control.fair_queues import Fairness

SPARE_MESSAGES = 4
"""Messages per queue beyond two for each child: what waits in the broker while the scan sleeps."""
REACH = 4
"""At most this many times more rows are read than the last messages held: a pass that finds slow
tasks, one of which makes a message, need not read thousands."""


@dataclass(slots=True)
class QueueRoom:
    """One queue as the dispatcher sees it: who serves it, and what is out."""

    queue: str
    throughput: QueueThroughput
    threads: int = 0
    names: set[str] = field(default_factory=set)
    out: list[Dispatch] = field(default_factory=list)
    fair: bool = False
    """Little of it is out, so that new tasks wait shortly."""
    hidden: dict[int, float] = field(default_factory=dict)
    """The ids that are out, with the instant of the newest message of each."""

    def measure(self, at: float) -> None:
        self.throughput.look(self.out, at)
        for dispatch in self.out:
            self.hidden.update(dict.fromkeys(dispatch.ids, dispatch.created_at.timestamp()))

    def messages(self, size: int) -> int:
        """Return how many more messages may go out."""
        spare = 0 if self.fair else SPARE_MESSAGES
        return max(2 * self.threads + spare, self.throughput.ahead(size)) - len(self.out)

    def free(self, settings: Settings) -> int:
        """Return how many more ids may go out."""
        size = settings.message_size
        reach = min(size, REACH * self.throughput.largest) if self.throughput.slow else size
        return min(self.messages(size) * reach, settings.ledger_ids - len(self.hidden))

    def visible(self, found: DueRows) -> list[tuple[int, str]]:
        """Return what is not out; a row that was rescheduled since its message was made is not."""
        sent_at = self.hidden.get
        return [(i, name) for i, name, scan_at in found.rows() if scan_at > sent_at(i, 0.0)]


class QueueRooms:
    """All queues of one dispatcher, from pass to pass."""

    def __init__(self, settings: Settings, fairness: Fairness, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lease = settings.lease
        self._fairness = fairness
        self._throughputs: dict[str, QueueThroughput] = {}

    def read(self, connection: Connection, *, now: datetime | None = None) -> dict[str, QueueRoom]:
        """Return the queues that a live child serves and that do not stand still."""
        rooms: dict[str, QueueRoom] = {}
        stopped = standing_still(connection, now=now)
        if EVERY_QUEUE in stopped:
            return rooms
        for worker in heartbeats.live(connection, self._lease, now=now):
            for queue in set(worker.queues) - stopped:
                throughput = self._throughputs.get(queue) or QueueThroughput()
                room = rooms.setdefault(queue, QueueRoom(queue, throughput))
                room.threads += worker.threads
                room.names.update(worker.handlers)
        self._throughputs = {queue: room.throughput for queue, room in rooms.items()}
        for dispatch in ledger.read(connection):
            if dispatch.queue in rooms:
                rooms[dispatch.queue].out.append(dispatch)
        at = self._clock()
        fair = self._fairness.among(connection, rooms)
        for room in rooms.values():
            room.fair = room.queue in fair
            room.measure(at)
        return rooms
