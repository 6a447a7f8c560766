"""Our defaults for Celery, each with its reason. ``celeryconfig.py`` of the working folder wins."""

from __future__ import annotations

from typing import Any

from tasks_app.broker.config.transports import BOUNDED, transport_settings

CONTROL_QUEUE = "tasks_app"
"""For our own scan and maintenance messages; every plain worker consumes it."""
EXECUTE, SCAN, MAINTAIN = "tasks_app.execute", "tasks_app.scan", "tasks_app.maintain"
OURS = (EXECUTE, SCAN, MAINTAIN)


def celery_defaults(broker_url: Any, scan_interval_s: float) -> dict[str, Any]:
    """Return Celery's settings for an app that lives on our pool."""
    return {
        # It goes on watching while the broker is away.
        "worker_consumer": "tasks_app.broker.consumer:PatientConsumer",
        **transport_settings(broker_url),
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        # After Celery's 100 tries a worker ends; an outage of hours is no reason to.
        "broker_connection_max_retries": None,
        "task_publish_retry_policy": BOUNDED,
        # The database is the truth; late acks would only add redelivery storms.
        "task_acks_late": False,
        "task_reject_on_worker_lost": False,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "task_ignore_result": True,
        "result_backend": None,
        # Nothing but JSON is ever read from the broker.
        "task_serializer": "json",
        "event_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "task_default_queue": "default",
        "task_send_sent_event": False,
        "worker_hijack_root_logger": False,
        # A child that imports much needs longer than Celery's 4 s, or it is killed for ever.
        "worker_proc_alive_timeout": 30,
        # Counted in messages; what leaks in handlers ends with the child.
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
