"""What can be done to a RabbitMQ and to the messages in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import amqp
from kombu.connection import Connection

from dev.torture.brokers import QUEUE, SOME
from dev.torture.rabbit_node import Node
from tasks_app.broker.defaults import CONTROL_QUEUE


class RabbitBroker:
    """A node of its own; queues are those that the workers make."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.kill, self.wipe, self.start = node.kill, node.wipe, node.start

    @property
    def url(self) -> str:
        return self._node.url

    def forget(self) -> None:
        """Delete the queues under their workers."""
        with self._channel() as channel:
            for queue in (QUEUE, CONTROL_QUEUE):
                channel.queue_delete(queue)

    def waiting(self) -> list[Any]:
        """Look at messages without an acknowledgement; they go back when the channel closes."""
        with suppress(amqp.NotFound), self._channel() as channel:
            return [(m.body, m.properties) for m in _get(channel, SOME, no_ack=False)]
        return []

    def deliver(self, messages: Iterable[Any]) -> None:
        """Send them as they were."""
        with self._channel() as channel:
            for body, properties in messages:
                channel.basic_publish(amqp.Message(body, **properties), "", QUEUE)

    def lose_half(self) -> None:
        """Take half of what waits out of the queue, and nobody else gets it."""
        with suppress(amqp.NotFound), self._channel() as channel:
            found = channel.queue_declare(QUEUE, passive=True).message_count
            _get(channel, found // 2, no_ack=True)

    def forge(self, bodies: Iterable[bytes]) -> None:
        """Send bytes without any property."""
        self.deliver((body, {}) for body in bodies)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Leave it no memory: it blocks publishers."""
        self._node.control("set_vm_memory_high_watermark", "0")
        yield
        self._node.control("set_vm_memory_high_watermark", "0.4")

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        connection: Any = Connection(self.url, connect_timeout=10)  # type: ignore[no-untyped-call]
        with connection, connection.channel() as channel:
            yield channel


def _get(channel: Any, most: int, *, no_ack: bool) -> list[Any]:
    found: list[Any] = []
    while len(found) < most and (message := channel.basic_get(QUEUE, no_ack=no_ack)) is not None:
        found.append(message)
    return found
