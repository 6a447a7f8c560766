"""One connection to the broker for one thread, made when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from celery import Celery

from tasks_app.broker.internals import ONE_CLIENT
from tasks_app.broker.publish.blocked import BlockedError, heed_alarms

T = TypeVar("T")


class BrokerConnection:
    """A connection and its channel, replaced when they have died."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.connection: Any = None
        self.channel: Any = None

    def do(self, act: Callable[[Any], T]) -> T:
        """Call ``act`` with the channel, if necessary twice: an idle connection may have died.

        Raises:
            Exception: whatever it raised on a fresh connection, which is then dropped.
        """
        if self.connection is not None:
            try:
                return act(self.channel)
            except BlockedError:  # a fresh one would be refused, too
                self.drop()
                raise
            except Exception:
                self.drop()
        try:
            self.connection = self.app.connection_for_write()
            self.channel = _one_client(self.connection.default_channel)
            heed_alarms(self.connection)
            return act(self.channel)
        except Exception:
            self.drop()
            raise

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait; None: no worker has made the queue yet. It declares none.

        Raises:
            Exception: the broker does not answer.
        """
        return self.do(lambda _channel: self._depth(queue))

    def drop(self) -> None:
        """Drop the connection without a goodbye: the broker may not answer it.

        A late reply would be taken for that of the next message.
        """
        connection, channel = self.connection, self.channel
        self.connection = self.channel = None
        if hasattr(getattr(channel, "connection", None), "collect"):  # AMQP would say goodbye
            channel.connection.collect()
        if connection is not None:
            connection.collect()

    def _depth(self, queue: str) -> int | None:
        # Redis declares nothing in any case; and a passive declare looks there for an empty list,
        # without our key prefix.
        if self.connection.transport.driver_type != "amqp":
            return int(self.channel.queue_declare(queue).message_count)
        channel = self.connection.channel()  # a queue that is missing costs it
        try:
            count = int(channel.queue_declare(queue, passive=True).message_count)
        except self.connection.channel_errors:
            return None
        channel.close()  # not after a time-out: a silent broker would not answer this either
        return count


def _one_client(channel: Any) -> Any:
    """Let a channel to Redis keep its client; kombu makes one for each message, at twice the cost.

    That is safe because one thread uses the channel, and consumes nothing.
    """
    if hasattr(channel, "conn_or_acquire") and ONE_CLIENT.works:
        channel.conn_or_acquire = lambda client=None: nullcontext(client or channel.client)
    return channel
