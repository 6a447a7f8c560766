"""What a test expects of a created task, and how that is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from tasks_app.domain.durations import Duration, format_duration, named_duration
from tasks_app.domain.handlers.spec import Handler
from tasks_app.domain.tasks.records import Task
from tasks_app.testing.results import name_of

LONGEST = 300
"""Characters of a task in a message."""
_SHOWN = (
    *("queue", "priority", "biz_key", "unique_key", "order_key", "limit_key", "more_limit_keys"),
)
_SAID_BY_DEFAULT = {"queue": "default", "priority": 5, "enabled": True, "headers": None}


class Where(TypedDict, total=False):
    """What else a created task must have. What is left out may be anything."""

    queue: str
    """Its queue."""
    priority: int
    """0 is first, 9 last."""
    biz_key: str | None
    """The business object that it is about."""
    unique_key: str | None
    """Its unique key, unless the key has a scope of its own."""
    order_key: str | None
    """Tasks of one key run one at a time."""
    limit_key: str | Sequence[str] | None
    """What it counts against: its key, or its keys in their order."""
    delay: Duration
    """How long after its creation it becomes due."""
    run_at: datetime
    """When it becomes due."""
    expires_at: datetime | None
    """After this instant it does not run."""
    max_attempts: int | None
    """As its producer said it; None: as its handler says."""
    enabled: bool
    """False: it is skipped when it becomes due."""
    headers: Mapping[str, Any]
    """Some of its headers, or all."""
    state: str
    """For instance ``PENDING``, or after a drain ``SUCCEEDED``."""


@dataclass(frozen=True)
class Expectation:
    """What must be so of a task."""

    name: str | None
    payload: Any
    """As JSON; ``...``: anything."""
    where: Mapping[str, Any]
    test: Callable[[Task], object] | None = None

    def is_met_by(self, task: Task) -> bool:
        """Whether the task is as expected."""
        return (
            self.name in {None, task.name}
            and (self.payload is ... or holds(task.payload, self.payload))
            and all(_fits(task, key, value) for key, value in self.where.items())
            and (self.test is None or bool(self.test(task)))
        )

    def __str__(self) -> str:
        """Say it as the end of a sentence about a task."""
        said = [] if self.payload is ... else [f"payload {_shown(self.payload)}"]
        said += [f"{key} {value!r}" for key, value in self.where.items()]
        if self.test is not None:
            said.append(f"test {getattr(self.test, '__name__', 'given')}")
        return f"{self.name or 'task'}{' with ' if said else ''}{', '.join(said)}"


def expectation(
    task: Handler[Any, Any] | str | None,
    payload: Any,
    where: Where,
    test: Callable[[Task], object] | None,
) -> Expectation:
    """Return it, checked.

    Raises:
        TypeError: ``where`` has a key that no task has.
    """
    if unknown := where.keys() - Where.__annotations__.keys():
        known = ", ".join(Where.__annotations__)
        raise TypeError(f"A created task has no {', '.join(sorted(unknown))}. It has: {known}.")
    name = None if task is None else name_of(task)
    return Expectation(name, payload if payload is ... else _as_json(task, payload), where, test)


def _as_json(task: Handler[Any, Any] | str | None, payload: Any) -> Any:
    if payload is None:
        return {}
    kind = task.spec.payload_type if isinstance(task, Handler) else None
    if kind is not None and kind.wraps(payload):
        payload = {"value": payload}
    return to_jsonable_python(TypeAdapter(Any).dump_python(payload, mode="json"))


def holds(whole: Any, part: Any) -> bool:
    """Whether each key of ``part`` is in ``whole`` with that value; lists must be equal."""
    if isinstance(part, Mapping) and isinstance(whole, Mapping):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    return bool(whole == part)


def _fits(task: Task, key: str, value: Any) -> bool:
    match key:
        case "delay":
            return task.due_at - task.created_at == named_duration("delay", value)
        case "run_at":
            return bool(task.due_at == value)
        case "limit_key":
            keys = [] if task.limit_key is None else [task.limit_key, *(task.more_limit_keys or ())]
            given = [value] if isinstance(value, str) else list(value or ())
            return keys == given
        case "headers":
            return holds(task.headers or {}, value)
        case _:
            return bool(getattr(task, key) == value)


def described(task: Task) -> str:
    """Return what a task is, in one line."""
    more = [f"payload {_shown(task.payload)}"]
    more += [
        f"{key} {value!r}"
        for key in _SHOWN
        if (value := getattr(task, key)) not in (None, _SAID_BY_DEFAULT.get(key))
    ]
    if task.due_at != task.created_at:
        more.append(f"delay {format_duration(task.due_at - task.created_at)}")
    more += [f"headers {_shown(task.headers)}"] if task.headers else []
    return _short(f"{task.name} ({task.id}, {task.state}): {', '.join(more)}")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
