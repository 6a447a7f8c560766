"""One connection to the broker for one thread, made when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from celery import Celery

from tasks_app.broker.internals import ONE_CLIENT
from tasks_app.broker.publish.blocked import heed_alarms

T = TypeVar("T")


class BrokerConnection:
    """A connection and its channel, replaced when they have died."""

    def __init__(self, app: Celery, *, hasty: bool = False, **options: Any) -> None:
        """``options`` take precedence over the app's ``broker_transport_options``.

        With ``hasty`` a broker that did not answer in time is not asked again.
        """
        self.app = app
        self._hasty = hasty
        self._options = options
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
            except Exception as error:
                self.drop()
                if self._hasty and "Timeout" in type(error).__name__:  # each driver has its own
                    raise
        try:
            self.connection = self.app.connection_for_write(transport_options=self._options)
            self.channel = _one_client(self.connection.default_channel)
            heed_alarms(self.connection)
            return act(self.channel)
        except Exception:
            self.drop()
            raise

    def drop(self) -> None:
        """Drop the connection without a goodbye: the broker may not answer it."""
        connection, channel = self.connection, self.channel
        self.connection = self.channel = None
        if hasattr(getattr(channel, "connection", None), "collect"):  # AMQP would say goodbye
            channel.connection.collect()
        if connection is not None:
            connection.collect()


def _one_client(channel: Any) -> Any:
    """Let a channel to Redis keep its client; kombu makes one for each message, at twice the cost.

    That is safe because one thread uses the channel, and consumes nothing.
    """
    if hasattr(channel, "conn_or_acquire") and ONE_CLIENT.works:
        channel.conn_or_acquire = lambda client=None: nullcontext(client or channel.client)
    return channel


def depth_of(connection: Any, channel: Any, queue: str) -> int:
    """Return how many messages wait, without declaring the queue.

    Raises:
        amqp.exceptions.ChannelError: RabbitMQ has no such queue, and closed the channel.
    """
    # Redis declares nothing in any case; and a passive declare looks there for an empty list,
    # without our key prefix.
    on_rabbitmq = connection.transport.driver_type == "amqp"
    return int(channel.queue_declare(queue, passive=on_rabbitmq).message_count)
