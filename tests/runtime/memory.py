"""A broker in memory, for tests of those who publish."""

from __future__ import annotations

from collections.abc import Sequence

from tasks_app.domain.errors import NoQueueError, PublishError
from tasks_app.pool.dispatch.ledger import Dispatch


class Memory:
    """A broker that remembers, and refuses when told to."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, int, tuple[int, ...]]] = []
        self.refuse_after: int | None = None
        self.certain = True
        self.error = PublishError
        self.missing: set[str] = set()
        self.probes = 0
        self.asked: list[str] = []
        self.depths: dict[str, int | None] = {}

    def publish(self, messages: Sequence[Dispatch]) -> dict[int, PublishError]:
        wrong: dict[int, PublishError] = {}
        for message in messages:
            if self.refuse_after is not None and len(self.messages) >= self.refuse_after:
                wrong[message.id] = self.error("away", certain=self.certain)
            elif message.queue in self.missing:
                wrong[message.id] = NoQueueError(message.queue)
            else:
                self.messages.append((message.queue, message.id, message.ids))
        return wrong

    def depth(self, queue: str) -> int | None:
        self.asked.append(queue)
        return self.depths.get(queue, 1)

    def probe(self) -> None:
        self.probes += 1
        if self.refuse_after is not None:
            raise self.error("away", certain=True)

    def ids(self, queue: str | None = None) -> list[int]:
        """All ids that were sent, in order."""
        return [i for q, _, ids in self.messages if queue in (None, q) for i in ids]

    def take(self) -> list[int]:
        """Return what was sent so far and forget it."""
        ids, self.messages = self.ids(), []
        return ids
