"""Tasks of other libraries, translated into our own by the module that knows the library."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import TypeAlias

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import HandlerSpec

Translated: TypeAlias = tuple[NewTask, HandlerSpec | None]
Translator: TypeAlias = Callable[[NewTask], Translated | None]
"""None: the object is not of its library."""

_TRANSLATORS: dict[str, Translator] = {}
_MODULES = {"celery": "tasks_app.broker.translation"}
"""Each registers its translator. It is imported when its library is loaded and an object comes that
is none of ours: a producer gives us Celery tasks without importing our Celery edge, and producers
that use no Celery load none."""


def register_translator(library: str, translator: Translator) -> None:
    _TRANSLATORS[library] = translator


def translated(new: NewTask) -> Translated:
    """Return the same task by its name, with what is known of its handler.

    Raises:
        InvalidTaskError: no translator knows such an object, or it cannot become a task.
    """
    for library, module in _MODULES.items():
        if library in sys.modules:
            importlib.import_module(module)
    for translator in _TRANSLATORS.values():
        if (answer := translator(new)) is not None:
            return answer
    if inspect.isroutine(new.task):
        what = "is a function that is no handler"
        raise InvalidTaskError("task", what, "a task's name, or a function with @handler before it")
    allowed = "a task's name, or a handler, after the session: create_task(session, task, payload)"
    of_payload = isinstance(new.task, dict | list)
    missing = ", as a payload is: the session comes first, and is missing" if of_payload else ""
    raise InvalidTaskError("task", f"is of type {type(new.task).__name__}{missing}", allowed)
