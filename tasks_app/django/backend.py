"""A backend of django.tasks (Django 6.0 and later), and tasks as its results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from math import ceil
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.tasks import task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task as DjangoTask
from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from tasks_app.django.configuration import database_alias
from tasks_app.django.creating import alias_to_write
from tasks_app.domain.large_values.store import LargeValueLostError
from tasks_app.domain.tasks.records import Attempt, Task
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.psycopg_connection import on_psycopg
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.api.tasks import load_large_values
from tasks_app.runtime.encryption.values import opened_attempts
from tasks_app.runtime.handlers.registry import HANDLERS, handler
from tasks_app.runtime.hints import hint_tasks
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind

_OF_HANDLERS = frozenset({"retry", "max_attempts", "timeout"})
_BACKENDS: dict[str, str] = {}
"""Of each handler's name that a backend declared in this process: its alias."""


class TasksBackend(BaseTaskBackend):
    """Each task function is a handler, named by its path."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(set(self.options) - _OF_HANDLERS - {"database"})
        if unknown:
            allowed = ", ".join(sorted(_OF_HANDLERS | {"database"}))
            raise ImproperlyConfigured(
                f"OPTIONS of TASKS[{alias!r}] has {unknown[0]!r:.60}. Allowed: {allowed}."
            )
        self._limits = {"max_attempts": 1} | {
            key: value for key, value in self.options.items() if key in _OF_HANDLERS
        }
        if "retry" in self.options and "max_attempts" not in self.options:
            del self._limits["max_attempts"]  # the policy implies it

    @property
    def database(self) -> str:
        """The alias of the database that has our tables."""
        return str(self.options.get("database") or database_alias())

    def validate_task(self, task: Any) -> None:
        """Check the task, and declare its handler: each Task of this backend comes by here."""
        super().validate_task(task)
        if HANDLERS.get(task.module_path) is None:
            self._declare(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Create the task in the open ``atomic()``; without one it commits alone.

        Raises:
            InvalidConnectionError: only another database has an open ``atomic()``.
        """
        self.validate_task(task)
        database = connections[alias_to_write(self.database)]
        database.ensure_connection()
        headers = {
            DJANGO: {
                "backend": self.alias,
                "priority": task.priority,
                "run_after": task.run_after and task.run_after.isoformat(),
            }
        }
        payload = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        alone = not database.in_atomic_block
        task_id = create_task(
            database.connection if alone else database,
            task.module_path,
            payload,
            queue=task.queue_name,
            priority=_our_priority(task.priority),
            headers=headers,
            run_at=task.run_after,
        )
        if alone and task.run_after is None:
            hint_tasks([task_id], queue=task.queue_name)
        result = self.get_result(str(int(task_id)))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        return find_result(connections[self.database], result_id)

    def _declare(self, task: Any) -> None:
        def run(ctx: Any, payload: dict[str, Any] | None) -> Any:
            result = self.get_result(str(ctx.task_id))
            task_started.send(type(self), task_result=result)
            transaction.on_commit(lambda: self.send_finished(ctx.task_id), using=self.database)
            context = [TaskContext(task_result=result)] * task.takes_context
            call = payload or {}
            args, kwargs = call.get("args", []), call.get("kwargs", {})
            return normalize_json(task.call(*context, *args, **kwargs))

        run.__module__, run.__qualname__ = task.func.__module__, task.func.__qualname__
        handler(task.module_path, queue=task.queue_name, **self._limits)(run)
        _BACKENDS[task.module_path] = self.alias

    def send_finished(self, task_id: int) -> None:
        task_finished.send(type(self), task_result=self.get_result(str(task_id)))


@HOOKS.follow
def _send_failed(notice: Notice) -> None:
    """Send ``task_finished`` for failures, in a thread of hooks, which has backends of its own."""
    if not notice.kind.is_final or notice.kind is NoticeKind.SUCCEEDED:
        return
    header = json.loads(notice.headers or "{}").get(DJANGO)
    alias = header["backend"] if header else _BACKENDS.get(notice.name)
    if alias is not None:
        task_backends[alias].send_finished(notice.task_id)


def _our_priority(priority: int) -> int:
    """Return 0 (first) to 9 for Django's 100 (first) to -100; its 0 is our default, 5."""
    return 5 - ceil(priority / 20) if priority >= 0 else 5 + ceil(-priority / 25)


DJANGO = "django"
"""The header that a task has which ``enqueue()`` made. One of a schedule, or by name, has none."""
_STATUS = {
    State.PENDING: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
}
"""All others have failed: there is no fifth status."""


def find_result(database: Any, result_id: str) -> TaskResult:
    """Return what became of a task; TaskResultDoesNotExist: ``django.tasks`` has no such task."""
    try:
        number = int(result_id)
    except (TypeError, ValueError):
        raise TaskResultDoesNotExist(result_id) from None
    database.ensure_connection()
    connection = on_psycopg(database.connection)
    task, function = browse.get(connection, number), None
    with suppress(ImportError):
        function = import_string(task.name) if task else None
    if task is None or not isinstance(function, DjangoTask):
        raise TaskResultDoesNotExist(result_id)
    try:
        task = load_large_values(connection, task)
    except LargeValueLostError:  # of what did not succeed, the payload may be lost
        if task.state is State.SUCCEEDED:
            raise
    attempts = opened_attempts(browse.failed_attempts(connection, number), task.name)
    return _result(task, function, attempts)


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
    call = task.payload or {}  # encrypted without its key, or lost: it has neither part
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
    """Return the function with the options of this call.

    A queue that Django does not know is left out: an operator or a schedule chose it.
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
