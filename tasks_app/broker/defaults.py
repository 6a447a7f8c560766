"""Our defaults for Celery, each with its reason. ``celeryconfig.py`` of the working folder wins."""

from __future__ import annotations

from typing import Any

from tasks_app.broker.config.transports import BOUNDED, transport_settings

CONTROL_QUEUE = "tasks_app"
"""For our scan and maintenance messages; every plain worker consumes it."""
EXECUTE, SCAN, MAINTAIN = "tasks_app.execute", "tasks_app.scan", "tasks_app.maintain"
OURS = (EXECUTE, SCAN, MAINTAIN)


def celery_defaults(broker_url: Any, scan_interval_s: float) -> dict[str, Any]:
    """Return Celery's settings for an app that runs on our pool."""
    return {
        # It watches the children while the broker is away.
        "worker_consumer": "tasks_app.broker.consumer:PatientConsumer",
        **transport_settings(broker_url),
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        # Celery ends a worker after 100 tries; an outage of hours is no reason to.
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
docs/celery-settings.md says; tests/broker/config/test_celery_settings.py proves each."""
