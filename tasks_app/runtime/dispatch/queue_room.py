"""How many more messages of a queue may be under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks_app.domain.config.settings import Settings
from tasks_app.pool.dispatch.ledger import Dispatch
from tasks_app.pool.dispatch.scan import Due
from tasks_app.runtime.dispatch.queue_throughput import QueueThroughput


@dataclass(slots=True)
class QueueRoom:
    """One queue as the dispatcher sees it: who serves it, and what is out."""

    queue: str
    flow: QueueThroughput
    threads: int = 0
    names: set[str] = field(default_factory=set)
    out: list[Dispatch] = field(default_factory=list)
    fair: bool = False
    """Little is out of it, so that who comes new waits shortly."""
    hidden: dict[int, float] = field(default_factory=dict)
    """The ids that are out, with the instant of the newest message of each."""

    def measure(self, at: float) -> None:
        """Look at what is out."""
        self.flow.look(self.out, at)
        for dispatch in self.out:
            self.hidden.update(dict.fromkeys(dispatch.ids, dispatch.created_at.timestamp()))

    def messages(self, size: int) -> int:
        """Return how many more messages may go out."""
        spare = 0 if self.fair else SPARE_MESSAGES
        return max(2 * self.threads + spare, self.flow.ahead(size)) - len(self.out)

    def room(self, settings: Settings) -> int:
        """Return how many more ids may go out."""
        size = settings.message_size
        reach = min(size, REACH * self.flow.largest) if self.flow.slow else size
        return min(self.messages(size) * reach, settings.ledger_ids - len(self.hidden))

    def visible(self, found: Due) -> list[tuple[int, str]]:
        """Return what is not out; a row that was rescheduled since its message was made is not."""
        sent_at = self.hidden.get
        return [(i, name) for i, name, scan_at in found.rows() if scan_at > sent_at(i, 0.0)]


SPARE_MESSAGES = 4
"""Messages per queue beyond two for each child: what waits in the broker while the scan sleeps."""


REACH = 4
"""So many times more rows than the last messages held are read at most: a pass that finds slow
tasks, one of which makes a message, need not read thousands."""
