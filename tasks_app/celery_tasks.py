"""For people who have Celery tasks: run them from the pool, call them into a transaction."""

from __future__ import annotations

from tasks_app.broker.adoption import run_from_pool
from tasks_app.broker.outbox import OutboxError, OutboxTask, PoolResult, outbox

__all__ = ["OutboxError", "OutboxTask", "PoolResult", "outbox", "run_from_pool"]
