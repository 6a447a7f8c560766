"""Celery's settings that do not reach our messages and tasks, as docs/celery-settings.md says.

They are for Celery tasks of others; ``tests/broker/config/test_celery_settings.py`` proves each.
"""

from __future__ import annotations

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
"""Names, or patterns of them."""
