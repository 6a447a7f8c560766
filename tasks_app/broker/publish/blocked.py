"""RabbitMQ with an alarm, of memory or disk, takes no message: who sends one is told, or waits.

It answers no more on a connection that tried. So that nobody waits for what cannot come, the notice
(``connection.blocked``) is raised where it is heard: while a publish waits for its confirm.
"""

from __future__ import annotations

from typing import Any

NOBODY = "tasks_app.nobody"
"""No queue has this name: what is sent there the broker confirms, and drops."""


class BlockedError(Exception):
    """The broker said that it takes no message from this connection."""


def heed_alarms(connection: Any) -> None:
    """Let the notice be raised to whoever uses a connection, which kombu has made."""
    if connection.transport.driver_type == "amqp":
        connection.connection.on_blocked = _refuse


def try_to_send(connection: Any, patience_s: float) -> None:
    """Pass if the broker takes a message, or is of a kind that would say so at each.

    Raises:
        BlockedError: it takes none now.
        Exception: it did not answer in time.
    """
    if connection.transport.driver_type != "amqp":
        return
    heed_alarms(connection)
    channel = connection.default_channel
    channel.basic_publish_confirm(
        channel.prepare_message(b""), routing_key=NOBODY, confirm_timeout=patience_s
    )


def _refuse(reason: str) -> None:
    raise BlockedError(reason)
