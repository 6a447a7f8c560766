"""A broker in memory, for tests of those who publish."""

from __future__ import annotations

from collections.abc import Sequence

from tasks_app.domain.errors import NoQueueError, PublishError
from tasks_app.runtime.hint_sender import Message


class Memory:
    """A broker that remembers, and refuses when told to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        """What waits in it."""
        self.refuse_after: int | None = None
        self.error = PublishError
        self.missing: set[str] = set()
        self.probes = 0
        self.asked: list[str] = []
        self.silent = False
        """It does not tell how many messages wait."""

    def publish(self, messages: Sequence[Message]) -> dict[int, PublishError]:
        wrong: dict[int, PublishError] = {}
        for place, message in enumerate(messages):
            if self.refuse_after is not None and len(self.messages) >= self.refuse_after:
                wrong[place] = self.error("away")
            elif message.queue in self.missing:
                wrong[place] = NoQueueError(message.queue)
            else:
                self.messages.append(message)
        return wrong

    def depths(self, queues: Sequence[str]) -> dict[str, int]:
        self.asked += queues
        if self.silent:
            raise self.error("away")
        return {queue: sum(m.queue == queue for m in self.messages) for queue in queues}

    def probe(self) -> None:
        self.probes += 1
        if self.refuse_after is not None or self.silent:
            raise self.error("away")

    @property
    def sizes(self) -> list[int]:
        return [len(message.ids) for message in self.messages]

    def ids(self, queue: str | None = None) -> list[int]:
        return [
            i for message in self.messages if queue in (None, message.queue) for i in message.ids
        ]

    def take(self) -> list[int]:
        ids, self.messages = self.ids(), []
        return ids
