"""Hints out: an app and a connection of their own, so that nothing of the producer's is touched.

The process may be a web server, or a worker of somebody else's Celery: the app here is nobody's
current app, listens to no signals and knows no tasks. It makes no queues either: workers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery
from kombu.exceptions import ChannelError

from tasks_app.broker.configuration import configuration
from tasks_app.broker.depth import depth_of
from tasks_app.broker.envelope import Envelope
from tasks_app.broker.line import Line
from tasks_app.domain.settings import Settings

NO_SUCH_QUEUE = "404"


class CeleryHints:
    """Publishes hints for one thread of one process. It connects when it is first used."""

    def __init__(self, settings: Settings) -> None:
        app = Celery("tasks_app", set_as_current=False, fixups=[])
        app.conf.update(configuration(settings), task_always_eager=False)
        self._line = Line(app)
        self._envelope = Envelope(app)

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        """Send one message that no ledger knows."""
        self._line.do(lambda channel: self._envelope.put(channel, queue, None, ids))

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue, or None: no worker has made it yet."""
        return self._line.do(lambda channel: self._depth(channel, queue))

    def _depth(self, channel: Any, queue: str) -> int | None:
        try:
            return depth_of(self._line.connection, channel, queue)
        except ChannelError as error:
            if str(error.reply_code) != NO_SUCH_QUEUE:
                raise
            self._line.drop()  # RabbitMQ closes the channel with its answer
            return None
