"""Hints out: an app and a connection of their own, so that nothing of the producer's is touched.

The process may be a web server, or a worker of somebody else's Celery: the app here is nobody's
current app, listens to no signals and knows no tasks. It makes no queues either: workers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from celery import Celery
from kombu.exceptions import ChannelError

from tasks_app.broker.configuration import configuration
from tasks_app.broker.depth import depth_of
from tasks_app.broker.envelope import Envelope
from tasks_app.domain.settings import Settings

NO_SUCH_QUEUE = "404"
T = TypeVar("T")


class CeleryHints:
    """Publishes hints for one thread of one process. It connects when it is first used."""

    def __init__(self, settings: Settings) -> None:
        self._app = Celery("tasks_app", set_as_current=False, fixups=[])
        self._app.conf.update(configuration(settings), task_always_eager=False)
        self._envelope = Envelope(self._app)
        self._connection: Any = None
        self._channel: Any = None

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        """Send one message that no ledger knows."""
        self._twice(lambda: self._envelope.put(self._channel, queue, None, ids))

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue, or None: no worker has made it yet."""
        return self._twice(lambda: self._depth(queue))

    def _depth(self, queue: str) -> int | None:
        try:
            return depth_of(self._connection, self._channel, queue)
        except ChannelError as error:
            if str(error.reply_code) != NO_SUCH_QUEUE:
                raise
            self._disconnect()  # RabbitMQ closes the channel with its answer
            return None

    def _twice(self, act: Callable[[], T]) -> T:
        """Try again on a fresh connection: an idle one may have died without anybody's fault."""
        if self._connection is not None:
            try:
                return act()
            except Exception:
                self._disconnect()
        try:
            self._connection = self._app.connection_for_write()
            self._channel = one_client(self._connection.default_channel)
            return act()
        except Exception:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        """Drop the connection without a word to a broker that may be deaf."""
        connection, channel = self._connection, self._channel
        self._connection = self._channel = None
        if hasattr(getattr(channel, "connection", None), "collect"):  # AMQP would say goodbye
            channel.connection.collect()
        if connection is not None:
            connection.collect()


def one_client(channel: Any) -> Any:
    """Let a channel to Redis keep its client; kombu makes one for each message, at twice the cost.

    Only for a channel that one thread uses, and that consumes nothing.
    """
    if hasattr(channel, "conn_or_acquire"):
        channel.conn_or_acquire = lambda client=None: nullcontext(client or channel.client)
    return channel
