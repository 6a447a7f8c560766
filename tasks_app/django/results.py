"""Tasks as results of ``django.tasks``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.tasks import task_backends
from django.tasks.base import Task as DjangoTask
from django.tasks.base import TaskError, TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.utils.module_loading import import_string
from sqlalchemy import Connection

from tasks_app.domain.large_values.reference import LargeValueLostError
from tasks_app.domain.tasks.records import Attempt, Task
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.psycopg_connection import on_psycopg
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.tasks import in_full
from tasks_app.runtime.encryption.values import opened_attempts

DJANGO = "django"
"""The header that a task has which ``enqueue()`` made. One of a schedule, or by name, has none."""
_STATUS = {
    State.PENDING: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
}
"""All others have failed: there is no fifth status."""


def find_result(database: Any, result_id: str) -> TaskResult:
    """Return what became of a task.

    Raises:
        TaskResultDoesNotExist: there is none, or it is none of ``django.tasks``.
    """
    try:
        number = int(result_id)
    except (TypeError, ValueError):
        raise TaskResultDoesNotExist(result_id) from None
    database.ensure_connection()
    connection = on_psycopg(database.connection)
    task = browse.get(connection, number)
    function = _function(task) if task else None
    if task is None or function is None:
        raise TaskResultDoesNotExist(result_id)
    attempts = opened_attempts(browse.attempts(connection, number), task.name)
    return _result(_whole(connection, task), function, attempts)


def _whole(connection: Connection, task: Task) -> Task:
    """Return a task with its values; of one that did not succeed its payload may be lost."""
    try:
        return in_full(connection, task)
    except LargeValueLostError:
        if task.state is State.SUCCEEDED:
            raise
        return task


def _function(task: Task) -> Any:
    """Return the function as Django knows it; None: it is none of ``django.tasks``."""
    try:
        function = import_string(task.name)
    except ImportError:
        return None
    return function if isinstance(function, DjangoTask) else None


def _result(task: Task, function: Any, attempts: list[Attempt]) -> TaskResult:
    status = _STATUS.get(task.state, TaskResultStatus.FAILED)
    errors = [_error(each.kind, each.message, each.traceback) for each in attempts]
    if status is TaskResultStatus.FAILED and not errors:
        errors = [_error("", f"{task.state}: {task.error or ''}", None)]
    workers = [each.owner for each in attempts if each.owner]
    if task.owner and task.state in {State.RUNNING, State.SUCCEEDED}:
        workers.append(task.owner)
    starts = [each.started_at for each in attempts if each.started_at]
    starts += [task.started_at] if task.started_at else []
    called = _called(task, function)
    call = (
        task.payload or {}
    )  # an encrypted one has neither where its key is missing, nor has a lost one
    result = TaskResult(
        task=called,
        id=str(task.id),
        status=status,
        enqueued_at=task.created_at,
        started_at=min(starts, default=None),
        last_attempted_at=max(starts, default=None),
        finished_at=task.finished_at,
        args=call.get("args", []),
        kwargs=call.get("kwargs", {}),
        backend=called.backend,
        errors=errors,
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", task.result)
    return result


def _called(task: Task, function: Any) -> Any:
    """Return the function on the terms of this call.

    The queue is left out if Django does not know it: an operator or a schedule chose it.
    """
    terms = (task.headers or {}).get(DJANGO, {})
    alias = terms.get("backend", function.backend)
    changes = {"backend": alias, "priority": terms.get("priority")}
    queues = task_backends[alias].queues
    if not queues or task.queue in queues:
        changes["queue_name"] = task.queue
    if terms.get("run_after"):
        changes["run_after"] = datetime.fromisoformat(terms["run_after"])
    return function.using(**changes)


def _error(kind: str, message: str, traceback: str | None) -> TaskError:
    path = kind if "." in kind else f"builtins.{kind or 'Exception'}"
    if " " in path:  # one of our own words, such as "process died"
        path, message = "builtins.Exception", f"{kind}: {message}"
    begins = f"Traceback (most recent call last):\n{traceback}" if traceback else ""
    return TaskError(exception_class_path=path, traceback=f"{begins}{kind}: {message}\n")
