"""What dispatcher and hints need of a broker. The Celery edge implements it; tests do, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tasks_app.domain.errors import PublishError


class Message(NamedTuple):
    """A message that wakes a child of a queue; the ids are what to begin with."""

    queue: str
    ids: Sequence[int]


class Publisher(Protocol):
    """Sends messages. It may lose, repeat or delay them: the next scan makes up for it."""

    def publish(self, messages: Sequence[Message]) -> dict[int, PublishError]:
        """Send messages in one go; return what went wrong with which of them, by their place."""

    def depths(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages wait in each queue; 0 where the broker has no such queue.

        Raises:
            PublishError: the broker does not answer.
        """

    def probe(self) -> None:
        """Pass if the broker answers.

        Raises:
            PublishError: it does not.
        """


class HintPublisher(Protocol):
    """Sends hints on a connection of its own, for one thread at a time. May raise anything."""

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        """Send one message, and wait until the broker has it."""

    def start(self, queue: str, ids: Sequence[int]) -> bool:
        """Send one and wait for nothing; False: that is not possible just now.

        After True, :meth:`finish` is called before anything else.
        """

    def finish(self) -> None:
        """Wait until the broker has what was started."""

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue; None: no worker has made it yet."""
