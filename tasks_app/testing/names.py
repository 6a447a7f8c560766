"""The name of what a test gives as a task."""

from __future__ import annotations

from typing import Any

from tasks_app.domain.handlers.spec import Handler


def name_of(task: Any) -> str:
    """Return the name of a handler, of a task of ``django.tasks``, or the name as it is given.

    Raises:
        TypeError: it is none of them.
    """
    name = task.spec.name if isinstance(task, Handler) else getattr(task, "module_path", task)
    if not isinstance(name, str):
        raise TypeError(f"{task!r:.80} is no handler. Give the handler, or its name.")
    return name
