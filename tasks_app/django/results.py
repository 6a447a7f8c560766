"""Tasks as results of ``django.tasks``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.tasks.base import TaskError, TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.utils.module_loading import import_string

from tasks_app.domain.tasks.records import Attempt, Task
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.psycopg_connection import on_psycopg
from tasks_app.pool.tasks import browse
from tasks_app.runtime.encryption.values import opened_attempts, opened_task

DJANGO = "django"
"""The header that a task of ``django.tasks`` has."""
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
    if task is None or DJANGO not in (task.headers or {}):
        raise TaskResultDoesNotExist(result_id)
    attempts = opened_attempts(browse.attempts(connection, number), task.name)
    return _result(opened_task(task), attempts)


def _result(task: Task, attempts: list[Attempt]) -> TaskResult:
    status = _STATUS.get(task.state, TaskResultStatus.FAILED)
    errors = [_error(each.kind, each.message, each.traceback) for each in attempts]
    if status is TaskResultStatus.FAILED and not errors:
        errors = [_error("", f"{task.state}: {task.error or ''}", None)]
    workers = [each.owner for each in attempts if each.owner]
    if task.owner and task.state in {State.RUNNING, State.SUCCEEDED}:
        workers.append(task.owner)
    starts = [each.started_at for each in attempts if each.started_at]
    starts += [task.started_at] if task.started_at else []
    call = task.payload or {}  # an encrypted one has neither where its key is missing
    result = TaskResult(
        task=_called(task),
        id=str(task.id),
        status=status,
        enqueued_at=task.created_at,
        started_at=min(starts, default=None),
        last_attempted_at=max(starts, default=None),
        finished_at=task.finished_at,
        args=call.get("args", []),
        kwargs=call.get("kwargs", {}),
        backend=task.headers[DJANGO]["backend"],
        errors=errors,
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", task.result)
    return result


def _called(task: Task) -> Any:
    """Return the function as Django knows it, on the terms of this call."""
    terms = task.headers[DJANGO]
    function = import_string(task.name)
    called = function.using(
        queue_name=task.queue, priority=terms["priority"], backend=terms["backend"]
    )
    if terms["run_after"]:
        called = called.using(run_after=datetime.fromisoformat(terms["run_after"]))
    return called


def _error(kind: str, message: str, traceback: str | None) -> TaskError:
    path = kind if "." in kind else f"builtins.{kind or 'Exception'}"
    if " " in path:  # one of our own words, such as "process died"
        path, message = "builtins.Exception", f"{kind}: {message}"
    begins = f"Traceback (most recent call last):\n{traceback}" if traceback else ""
    return TaskError(exception_class_path=path, traceback=f"{begins}{kind}: {message}\n")
