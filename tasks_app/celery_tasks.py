"""For your Celery tasks: run them from the pool, call them within a transaction."""

from __future__ import annotations

from tasks_app.broker.outbox import OutboxTask, outbox
from tasks_app.broker.results import PoolResult
from tasks_app.broker.task_loading import run_from_pool
from tasks_app.domain.errors import OutboxError

__all__ = ["OutboxError", "OutboxTask", "PoolResult", "outbox", "run_from_pool"]
