"""``create_task`` with a Celery task or signature: checked as ``apply_async`` would check it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery import Task
from celery.canvas import Signature
from celery.exceptions import NotRegistered
from celery.result import ResultBase
from pydantic import BaseModel

from tasks_app.broker.celery_tasks.options import SINGLE_TASKS, options_of
from tasks_app.broker.celery_tasks.task import spec_of
from tasks_app.broker.internals import PYDANTIC
from tasks_app.domain.creation import NewTask
from tasks_app.domain.creation import check_call
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.runtime.api.foreign_tasks import register_translator
from tasks_app.runtime.handlers.registry import HANDLERS

_CANVAS = "celery."
"""Celery's own tasks: chain, group, chord, map, starmap, chunks."""


def translate(new: NewTask) -> tuple[NewTask, HandlerSpec | None] | None:
    """Return the task by its name and what is known of it; None: this is nothing of Celery's.

    Raises:
        InvalidTaskError: it is Celery's, but no task, or it cannot be a row.
    """
    task = new.task
    if isinstance(task, Signature):
        return _signature(new, task)
    if isinstance(task, Task):
        return _call(new, task)
    if isinstance(task, ResultBase):
        problem = "is what delay() returned, so it is sent already"
        raise InvalidTaskError("task", problem, "the task itself, without delay()")
    if isinstance(getattr(task, "__self__", None), Task):
        problem = f"is a method of the Celery task {task.__self__.name}"
        raise InvalidTaskError("task", problem, "the task itself, with args= and kwargs=")
    return None


def _signature(new: NewTask, signature: Signature) -> tuple[NewTask, HandlerSpec | None]:
    if signature.task.startswith(_CANVAS):
        problem = f"is a {signature.task.removeprefix(_CANVAS)}, which only messages carry"
        raise InvalidTaskError("task", problem, SINGLE_TASKS)
    if new.args is not None or new.kwargs is not None:
        raise InvalidTaskError("args", "is given together with a signature", "one of the two")
    options: Any = {**options_of(signature.app, signature.options), **_given(new.options)}
    called = replace(new, args=signature.args, kwargs=signature.kwargs, options=options)
    try:
        return _call(called, signature.type)
    except NotRegistered:  # its code is elsewhere, as with send_task
        return replace(called, task=signature.task), HANDLERS.get(signature.task)


def _call(new: NewTask, task: Task) -> tuple[NewTask, HandlerSpec]:
    if new.payload is not None:
        raise InvalidTaskError("payload", "is given to a Celery task", "args= and kwargs=")
    check_call(new)
    args, kwargs = _arguments(task, tuple(new.args or ()), dict(new.kwargs or {}))
    own = options_of(task.app, {"expires": task.expires, "priority": task.priority})
    options: Any = {**own, **_given(new.options)}
    return replace(new, task=task.name, args=args, kwargs=kwargs, options=options), spec_of(task)


def _arguments(
    task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if task.typing and hasattr(task, "__header__"):
        try:
            task.__header__(*args, **kwargs)
        except TypeError as error:
            raise InvalidTaskError("args", f"is wrong: {error}", "what the task takes") from None
    if (
        dump := getattr(task, "_dump_pydantic_arguments", None)
    ) is not None:  # it has no other name
        args, kwargs = dump(args, kwargs)
    for path, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, BaseModel):
            raise InvalidTaskError(
                f"args[{path}]" if isinstance(path, int) else f"kwargs.{path}",
                f"is a model, which {task.name} would not get back as one",
                "models for tasks with pydantic=True"
                if PYDANTIC.works
                else "what model_dump(mode='json') returns; Celery 5.7 and newer take models",
            )
    return args, kwargs


def _given(options: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (options or {}).items() if value is not None}


register_translator("celery", translate)
