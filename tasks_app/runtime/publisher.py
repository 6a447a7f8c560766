"""What dispatcher and hints need of a broker. The Celery edge implements it; tests do, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tasks_app.domain.errors import PublishError
from tasks_app.pool.dispatch.ledger import Dispatch


class Publisher(Protocol):
    """Sends messages. It may lose, repeat or delay them: the ledger and the scan make up for it."""

    def publish(self, messages: Sequence[Dispatch]) -> dict[int, PublishError]:
        """Send messages in one go; return what went wrong with which of them, by dispatch id.

        Each error says whether its message was certainly not sent.
        """

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue; None: it is not known."""

    def probe(self) -> None:
        """Pass if the broker answers.

        Raises:
            PublishError: it does not.
        """


class HintPublisher(Protocol):
    """Sends hints on a connection of its own, for one thread at a time. May raise anything."""

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        """Send one message that is in no ledger, and wait until the broker has it."""

    def start(self, queue: str, ids: Sequence[int]) -> bool:
        """Send one and wait for nothing; False: that is not possible just now.

        After True, :meth:`finish` is called before anything else.
        """

    def finish(self) -> None:
        """Wait until the broker has what was started."""

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue; None: no worker has made it yet."""
