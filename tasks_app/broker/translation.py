"""create_task with a Celery task or signature: its call and its options become ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from celery import Celery, Task
from celery.canvas import Signature
from celery.exceptions import NotRegistered
from celery.result import ResultBase
from pydantic import BaseModel

from tasks_app.broker.celery_tasks import instant, spec_of
from tasks_app.broker.internals import PYDANTIC
from tasks_app.domain.creation import NewTask, check_call
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.call_payload import CALL, CALL_ID
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.runtime.handlers.registry import HANDLERS

CANVAS = {"celery.chain": "chain", "celery.group": "group", "celery.chord": "chord"}
_OF_CELERY = "celery."  # its own tasks, also map, starmap and chunks
_SINGLE_TASKS = "a single task; only create_task takes a canvas, without then= or on_failure="


class Partial(NamedTuple):
    """A signature in a canvas, and what comes before its arguments: see ``Call``."""

    signature: Signature
    first: Any


def translate(new: NewTask) -> tuple[NewTask, HandlerSpec | None] | None:
    """Return the task by its name and its declaration, if known; None: this isn't Celery's.

    Raises:
        InvalidTaskError: it is Celery's, but not a task, or it cannot become a row.
    """
    task = new.task
    if isinstance(task, Signature):
        return _signature(new, task)
    if isinstance(task, Partial):
        return _signature(new, task.signature, task.first)
    if isinstance(task, Task):
        return _call(new, task)
    if isinstance(task, ResultBase):
        problem = "is what delay() returned, so it was sent already"
        raise InvalidTaskError("task", problem, "the task itself, without delay()")
    if isinstance(getattr(task, "__self__", None), Task):
        problem = f"is a method of the Celery task {task.__self__.name}"
        raise InvalidTaskError("task", problem, "the task itself, with args= and kwargs=")
    return None


def _signature(
    new: NewTask, signature: Signature, first: Any = None
) -> tuple[NewTask, HandlerSpec | None]:
    if signature.task in CANVAS:
        raise InvalidTaskError("task", f"is a {CANVAS[signature.task]}", _SINGLE_TASKS)
    if signature.task.startswith(_OF_CELERY):
        problem = f"is a {signature.task.removeprefix(_OF_CELERY)}, which only messages carry"
        raise InvalidTaskError("task", problem, "a task for each item")
    if new.args is not None or new.kwargs is not None:
        raise InvalidTaskError("args", "is given together with a signature", "one of the two")
    options = _merged(options_of(signature.app, signature.options), new.options)
    called = replace(new, args=signature.args, kwargs=signature.kwargs, options=options)
    try:
        return _call(called, signature.type, first)
    except NotRegistered:  # its code is elsewhere, as with send_task
        spec = HANDLERS.get(signature.task)
        return _with_first(replace(called, task=signature.task), spec, first), spec


def _call(new: NewTask, task: Task, first: Any = None) -> tuple[NewTask, HandlerSpec]:
    if new.payload is not None:
        raise InvalidTaskError("payload", "is given to a Celery task", "args= and kwargs=")
    check_call(new)
    before = () if first is None else (None,)  # in place of what comes when it runs
    args, kwargs = _arguments(task, (*before, *(new.args or ())), dict(new.kwargs or {}))
    own = options_of(task.app, {"expires": task.expires, "priority": task.priority})
    options = _merged(own, new.options)
    called = replace(new, task=task.name, args=args[len(before) :], kwargs=kwargs, options=options)
    spec = spec_of(task)
    return _with_first(called, spec, first), spec


def _with_first(new: NewTask, spec: HandlerSpec | None, first: Any) -> NewTask:
    if first is None or (spec is not None and spec.payload_type is not CALL):
        return new  # a handler of ours is refused, as it is with arguments
    payload = {"args": list(new.args or ()), "kwargs": dict(new.kwargs or {}), "first": first}
    return replace(new, payload=payload, args=None, kwargs=None)


def _arguments(
    task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if task.typing and hasattr(task, "__header__"):
        try:
            task.__header__(*args, **kwargs)
        except TypeError as error:
            raise InvalidTaskError("args", f"is wrong: {error}", "what the task takes") from None
    dump = getattr(task, "_dump_pydantic_arguments", None)  # it has no public name
    if dump is not None:
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


def _merged(own: Mapping[str, Any], given: Mapping[str, Any] | None) -> Any:
    """Return the options of a task or signature with those of its call, which win."""
    options = {name: value for name, value in (given or {}).items() if value is not None}
    named = (own.get("headers") or {}).get(CALL_ID)
    if named is None:
        return {**own, **options}
    if options.get("biz_key", named) != named:
        raise InvalidTaskError("biz_key", "is given beside a task_id", "one: a task_id is both")
    return {**own, **options, "headers": {**options.get("headers", {}), **own["headers"]}}


def _expiry(app: Celery, value: Any) -> Any:
    """Seconds count from now by this machine's clock, as in Celery."""
    if isinstance(value, int | float):
        return app.now() + timedelta(seconds=max(0, value))
    return instant(app, value)


def _priority(app: Celery, value: Any) -> Any:
    """Keep the order of the app's own broker: with Redis 0 goes first, as here; else 9 does."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value  # refused on creation
    broker = str(app.conf.broker_url or "").partition(":")[0].partition("+")[0]
    return min(9, max(0, value if broker in ("redis", "rediss", "sentinel") else 9 - value))


_OPTIONS: dict[str, tuple[str, Callable[[Celery, Any], Any]]] = {
    "countdown": ("delay", lambda _, value: max(0, value)),
    "eta": ("run_at", instant),
    "expires": ("expires_at", _expiry),
    "priority": ("priority", _priority),
    "queue": ("queue", lambda _, value: getattr(value, "name", value)),
    "time_limit": ("hard_timeout", lambda _, value: value),
    "soft_time_limit": ("timeout", lambda _, value: value),
    "headers": ("headers", lambda _, value: value),
}
_OF_THE_MESSAGE = (
    *("add_to_parent", "compression", "connection", "delivery_mode", "ignore_result"),
    *("parent_id", "producer", "publisher", "retries", "retry", "retry_policy", "root_id"),
    *("reply_to", "shadow"),
)
"""Options about sending or showing a message; a row needs none of them."""
_NOT_OURS = {*_OF_THE_MESSAGE, "task_id"}


def options_of(app: Celery, given: Mapping[str, Any]) -> TaskOptions:
    """Return Celery's options as ours.

    Raises:
        InvalidTaskError: a row cannot keep one of them.
    """
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name in _NOT_OURS or (name, value) == ("serializer", "json"):
            continue
        if name not in _OPTIONS:
            raise InvalidTaskError(f"options.{name}", *_refusal(name))
        ours, convert = _OPTIONS[name]
        options[ours] = convert(app, value)
    if "delay" in options:
        options.pop("run_at", None)  # in Celery countdown wins, too
    task_id = given.get("task_id")
    if task_id is not None:
        if not isinstance(task_id, str) or task_id.isdecimal():
            raise InvalidTaskError("options.task_id", "looks like a row's id", "any other text")
        headers = {**options.get("headers", {}), CALL_ID: task_id}
        options |= {"unique_key": task_id, "biz_key": task_id, "headers": headers}
    return options  # type: ignore[return-value]  # checked on creation, as all options are


def _refusal(name: str) -> tuple[str, str]:
    match name:
        case "link" | "link_error" | "chain" | "chord" | "group_id" | "group_index":
            return "belongs to callbacks, chains, groups or chords", _SINGLE_TASKS
        case "exchange" | "routing_key":
            return "has no meaning in the pool", "queue="
        case _:
            return "is unknown to the pool", ", ".join(_OPTIONS)
