"""How many messages wait in a queue of the broker."""

from __future__ import annotations

from typing import Any


def depth_of(connection: Any, channel: Any, queue: str) -> int:
    """Ask over a channel of a connection, and change nothing.

    Raises:
        amqp.exceptions.ChannelError: RabbitMQ has no such queue, and closed the channel.
    """
    # On Redis nothing is declared, ever; and asked passively, kombu looks for an empty list, and
    # without the prefix of our keys.
    on_rabbitmq = connection.transport.driver_type == "amqp"
    return int(channel.queue_declare(queue, passive=on_rabbitmq).message_count)
