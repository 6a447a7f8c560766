"""Settings for each kind of broker, with their reasons; the rest is in ``defaults``."""

from __future__ import annotations

import socket
from typing import Any

BOUNDED = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
"""While the broker is away a publish fails at once; the scan returns to the rows."""

_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)  # not every system has all of them
}
_REDIS: dict[str, Any] = {
    "broker_transport_options": {
        # A dead peer must not block us for ever: kombu's own default is no timeout at all.
        "socket_connect_timeout": 2,
        "socket_timeout": 5,
        "socket_keepalive": True,
        # A process that only waits for messages would notice a dead peer after two hours.
        "socket_keepalive_options": _KEEPALIVE,
        "health_check_interval": 15,
        # Several apps may share one Redis.
        "global_keyprefix": "tasks_app:",
        # A list of unacknowledged messages in Redis costs two transactions per message, and
        # returns a lost one after an hour. Our scan does it in seconds.
        "ack_emulation": False,
        # The scan orders by priority, so a worker waits for one list per queue, not for four.
        "priority_steps": [0],
        **BOUNDED,
    },
}
_RABBITMQ: dict[str, Any] = {
    "broker_transport_options": {
        # Timeouts as for Redis: of the handshake, of an answer, of a peer that no longer reads.
        "connect_timeout": 2,
        "read_timeout": 5,
        "write_timeout": 5,
        # Without it a message that RabbitMQ did not take looks sent.
        "confirm_publish": True,
        **BOUNDED,
    },
    # A peer that vanishes is noticed after two of these, not after four minutes.
    "broker_heartbeat": 10,
    # A channel that RabbitMQ closes (by consumer_timeout, say) is reopened; Celery would end.
    "broker_channel_error_retry": True,
    # They survive the loss of a node; RabbitMQ 4 has no other replicated kind.
    "task_default_queue_type": "quorum",
    "task_create_missing_queue_type": "quorum",
    # Their QoS is per consumer; the global one is refused.
    "worker_detect_quorum_queues": True,
    # An exclusive queue stays locked until RabbitMQ notices that its connection died, which keeps
    # the worker from coming back; a transient one that is not exclusive is deprecated in 4. These
    # expire 10 s after their consumer.
    "control_queue_exclusive": False,
    "control_queue_durable": True,
    # Nothing is delayed in the broker, so Celery's 28 queues for that are left out.
    "worker_consumer": "tasks_app.broker.consumer:RabbitConsumer",
}
_SETTINGS = {
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "pyamqp": _RABBITMQ,
    "redis": _REDIS,
    "rediss": _REDIS,
    "sentinel": _REDIS,
}
KNOWN = tuple(_SETTINGS)
"""Schemes of the URLs of supported brokers."""


def transport_settings(broker_url: Any) -> dict[str, Any]:
    """Return Celery's settings for the kind of broker in the URL, or in the first of a list."""
    first = broker_url[0] if isinstance(broker_url, list | tuple) and broker_url else broker_url
    kind = str(first or "").partition("://")[0].partition("+")[0]
    return _SETTINGS.get(kind, {"broker_transport_options": BOUNDED})
