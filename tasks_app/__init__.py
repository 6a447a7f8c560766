"""tasks_app: durable jobs for people who already have PostgreSQL and Celery.

Importing this package imports neither Celery nor a broker client.
"""

from __future__ import annotations

from tasks_app.domain.errors import (
    HandlerTimeoutError,
    InvalidTaskError,
    TasksError,
    UniqueKeyTakenError,
)
from tasks_app.domain.outcome import Cancel, Fail, Retry, Skip, Snooze
from tasks_app.domain.retry import Exponential, Fixed, Levels
from tasks_app.domain.settings import Settings
from tasks_app.domain.task import NewTask, Task, TaskId, TaskOptions
from tasks_app.pool.cancel import Cancelled
from tasks_app.pool.requeue import Requeued
from tasks_app.runtime.context import TaskContext
from tasks_app.runtime.producer import (
    acreate_task,
    acreate_tasks,
    cancel_task,
    cancel_tasks,
    create_task,
    create_tasks,
    get_task,
    requeue_task,
)
from tasks_app.runtime.registry import handler

__all__ = [
    "Cancel",
    "Cancelled",
    "Exponential",
    "Fail",
    "Fixed",
    "HandlerTimeoutError",
    "InvalidTaskError",
    "Levels",
    "NewTask",
    "Requeued",
    "Retry",
    "Settings",
    "Skip",
    "Snooze",
    "Task",
    "TaskContext",
    "TaskId",
    "TaskOptions",
    "TasksError",
    "UniqueKeyTakenError",
    "acreate_task",
    "acreate_tasks",
    "cancel_task",
    "cancel_tasks",
    "create_task",
    "create_tasks",
    "get_task",
    "handler",
    "requeue_task",
]
