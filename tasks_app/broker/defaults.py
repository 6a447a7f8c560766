"""Our defaults for Celery and for each kind of broker, each with its reason."""

from __future__ import annotations

import socket
from typing import Any

CONTROL_QUEUE = "tasks_app"
"""For our scan and maintenance messages; every plain worker consumes it."""
EXECUTE, SCAN, MAINTAIN = "tasks_app.execute", "tasks_app.scan", "tasks_app.maintain"
OURS = (EXECUTE, SCAN, MAINTAIN)


def celery_defaults(broker_url: Any, scan_interval_s: float) -> dict[str, Any]:
    return {
        # It watches the children while the broker is away.
        "worker_consumer": "tasks_app.broker.consumer:PatientConsumer",
        **transport_settings(broker_url),
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        # Celery ends a worker after 100 tries; an outage of hours is no reason to.
        "broker_connection_max_retries": None,
        "task_publish_retry_policy": BOUNDED,
        # The database decides; late acks would only add redelivery storms.
        "task_acks_late": False,
        "task_reject_on_worker_lost": False,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "task_ignore_result": True,
        "result_backend": "tasks_app://",
        # The broker's messages are read as JSON only.
        "task_serializer": "json",
        "event_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "task_default_queue": "default",
        "task_send_sent_event": False,
        "worker_hijack_root_logger": False,
        # A child that imports much needs longer than Celery's 4 s, or is killed again and again.
        "worker_proc_alive_timeout": 30,
        # Counted in messages; what handlers leak ends with the child.
        "worker_max_tasks_per_child": 10_000,
        "beat_scheduler": "tasks_app.broker.beat:PoolScheduler",
        "beat_schedule": {
            SCAN: {
                "task": SCAN,
                "schedule": scan_interval_s,
                "options": {"queue": CONTROL_QUEUE, "expires": max(1.0, scan_interval_s * 5)},
            },
            MAINTAIN: {
                "task": MAINTAIN,
                "schedule": 3600.0,
                "options": {"queue": CONTROL_QUEUE, "expires": 600},
            },
        },
        "timezone": "UTC",
    }


_OF_TASKS = (
    *("task_default_rate_limit", "task_annotations", "task_acks_late", "task_acks_on_failure"),
    *("task_acks_on_failure_or_timeout", "task_acks_on_timeout", "task_reject_on_worker_lost"),
    *("task_retry_on_worker_lost", "task_track_started", "task_ignore_result"),
    *("task_store_eager_result", "task_store_errors_even_if_ignored", "task_remote_tracebacks"),
    "task_allow_error_cb_on_chord_header",
)
_OF_MESSAGES = (
    *("task_serializer", "task_protocol", "task_compression", "task_default_delivery_mode"),
    *("task_default_priority", "task_inherit_parent_priority", "task_send_sent_event"),
    *("task_routes", "task_default_routing_key", "task_publish_retry"),
    "task_publish_retry_policy",
)
_OF_WORKERS = (
    *("worker_disable_rate_limits", "worker_eta_task_limit"),
    *("worker_deduplicate_successful_tasks", "broker_native_delayed_delivery_queue_type"),
    "worker_cancel_long_running_tasks_on_connection_loss",
)
_OF_BEAT = ("beat_schedule_filename", "beat_sync_every")
_OF_STORES = (
    *("result_*", "arangodb_*", "azureblockblob_*", "cache_*", "cassandra_*", "cosmosdbsql_*"),
    *("couchbase_*", "database_*", "elasticsearch_*", "gcs_*", "mongodb_*", "redis_*", "s3_*"),
)
PASSED_BY = (*_OF_TASKS, *_OF_MESSAGES, *_OF_WORKERS, *_OF_BEAT, *_OF_STORES)
"""Names and patterns of settings that do not reach our messages and tasks, as
docs/celery-settings.md says; tests/broker/test_celery_settings.py proves each."""
BOUNDED = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
"""While the broker is away a publish fails at once; the scan sends the rows later."""
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)  # not every system has all of them
}
_REDIS: dict[str, Any] = {
    "broker_transport_options": {
        # A dead peer must not block us for ever: kombu has no timeout by default.
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
    # A peer that disappears is noticed after two of these, not after four minutes.
    "broker_heartbeat": 10,
    # A channel that RabbitMQ closes (by consumer_timeout, say) is reopened; Celery would end.
    "broker_channel_error_retry": True,
    # They survive the loss of a node; RabbitMQ 4 has no other replicated kind.
    "task_default_queue_type": "quorum",
    "task_create_missing_queue_type": "quorum",
    # Their QoS is per consumer; the global one is refused.
    "worker_detect_quorum_queues": True,
    # An exclusive queue stays locked until RabbitMQ notices that its connection died, so the worker
    # could not come back; RabbitMQ 4 deprecates transient queues that are not exclusive. These
    # expire 10 s after their consumer.
    "control_queue_exclusive": False,
    "control_queue_durable": True,
    # Nothing is delayed in the broker, so Celery's 28 queues for that are left out.
    "worker_consumer": "tasks_app.broker.consumer:RabbitConsumer",
}
_SETTINGS = dict.fromkeys(("amqp", "amqps", "pyamqp"), _RABBITMQ)
_SETTINGS |= dict.fromkeys(("redis", "rediss", "sentinel"), _REDIS)
KNOWN = tuple(_SETTINGS)  # schemes of the URLs of supported brokers


def transport_settings(broker_url: Any) -> dict[str, Any]:
    first = broker_url[0] if isinstance(broker_url, list | tuple) and broker_url else broker_url
    kind = str(first or "").partition("://")[0].partition("+")[0]
    return _SETTINGS.get(kind, {"broker_transport_options": BOUNDED})
