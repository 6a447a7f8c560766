"""Tasks of other libraries, made into our own: for each library one room of a higher floor.

It is imported only when somebody gives us an object while its library is loaded, so that producers
who use only us load nothing else.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TypeAlias

from tasks_app.domain.creation.new_task import NewTask
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import HandlerSpec

Translated: TypeAlias = tuple[NewTask, HandlerSpec | None]
Translate: TypeAlias = Callable[[NewTask], Translated | None]
"""The function of this name in such a room; None: the object is not of its library."""

ROOMS = {"celery": "tasks_app.broker.celery_tasks.translation"}


def translated(new: NewTask) -> Translated:
    """Return the same task by its name, with what is known of its handler.

    Raises:
        InvalidTaskError: nobody knows such an object, or it cannot become a task.
    """
    for library, room in ROOMS.items():
        if library in sys.modules:
            translate: Translate = importlib.import_module(room).translate
            answer = translate(new)
            if answer is not None:
                return answer
    kind = type(new.task).__name__
    raise InvalidTaskError("task", f"is of type {kind}", "a task's name, or a handler")
