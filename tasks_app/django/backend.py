"""A backend of ``django.tasks``, which Django has from version 6.0 on.

``TASKS = {"default": {"BACKEND": "tasks_app.django.backend.TasksBackend"}}``. Its ``OPTIONS`` are
``database`` (an alias) and those of ``@handler`` that say how often and how long: ``retry``,
``max_attempts``, ``timeout``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.tasks import task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskContext, TaskResult
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils.json import normalize_json

from tasks_app.django.configuration import database_alias
from tasks_app.django.creating import alias_to_write
from tasks_app.django.results import DJANGO, find_result
from tasks_app.runtime.api.producer import create_task
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
            priority=ours(task.priority),
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
            transaction.on_commit(lambda: self.tell_of_end(ctx.task_id), using=self.database)
            context = [TaskContext(task_result=result)] * task.takes_context
            call = payload or {}
            args, kwargs = call.get("args", []), call.get("kwargs", {})
            return normalize_json(task.call(*context, *args, **kwargs))

        run.__module__, run.__qualname__ = task.func.__module__, task.func.__qualname__
        handler(task.module_path, queue=task.queue_name, **self._limits)(run)
        _BACKENDS[task.module_path] = self.alias

    def tell_of_end(self, task_id: int) -> None:
        """Send ``task_finished``."""
        task_finished.send(type(self), task_result=self.get_result(str(task_id)))


@HOOKS.follow
def tell_of_failure(notice: Notice) -> None:
    """Send it for what failed; Django makes backends anew in each thread, and this is one."""
    if not notice.kind.is_final or notice.kind is NoticeKind.SUCCEEDED:
        return
    header = json.loads(notice.headers or "{}").get(DJANGO)
    alias = header["backend"] if header else _BACKENDS.get(notice.name)
    if alias is not None:
        task_backends[alias].tell_of_end(notice.task_id)


def ours(priority: int) -> int:
    """Return our priority, 0 (first) to 9, for Django's, 100 (first) to -100; 0 is our usual 5."""
    return 5 - ceil(priority / 20) if priority >= 0 else 5 + ceil(-priority / 25)
