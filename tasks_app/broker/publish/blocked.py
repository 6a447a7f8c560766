"""RabbitMQ with an alarm of memory or disk takes no message: the sender gets a notice, or waits.

It answers nothing more on a connection that tried to send. So that nobody waits in vain, the notice
(``connection.blocked``) is raised where it arrives: while a publish waits for its confirm.
"""

from __future__ import annotations

from typing import Any

NOBODY = "tasks_app.nobody"
"""No queue has this name: the broker confirms a message to it, and drops it."""


class BlockedError(Exception):
    """The broker takes no message from this connection."""


def heed_alarms(connection: Any) -> None:
    """Let a connection of kombu's raise the notice to its user."""
    if connection.transport.driver_type == "amqp":
        connection.connection.on_blocked = _refuse


def try_to_send(connection: Any, patience_s: float) -> None:
    """Pass if the broker takes a message, or is of a kind that refuses each one by itself.

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
