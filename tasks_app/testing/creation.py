"""Which tasks were created, as the transaction of the test sees it, committed or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, TypedDict, Unpack

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from tasks_app.domain.durations import Duration, format_duration, named_duration
from tasks_app.domain.handlers.spec import Handler
from tasks_app.domain.tasks.records import Task
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.tasks import load_large_values
from tasks_app.runtime.db.connections import Raw, Sync, made_async, on_connection
from tasks_app.testing.results import name_of

MOST_READ = 100_000
MOST_SHOWN = 20
LONGEST = 300
"""Characters of a task in a message."""
_LIMITS = ("limit_key", "more_limit_keys", "weight")
_DEFAULTS = {"queue": "default", "priority": 5}
_SHOWN = (*_DEFAULTS, "biz_key", "unique_key", "order_key", *_LIMITS)
Test = Callable[[Task], object]


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
    weight: int | None
    """How many tokens its start takes from their rates."""
    delay: Duration
    """How long after its creation it becomes due."""
    run_at: datetime
    """When it becomes due."""
    expires_at: datetime | None
    """After this instant it does not run."""
    max_attempts: int | None
    """As its producer gave it; None: as its handler declares."""
    enabled: bool
    """False: it is skipped when it becomes due."""
    headers: Mapping[str, Any]
    """Some of its headers, or all."""
    state: str
    """For instance ``PENDING``, or after a drain ``SUCCEEDED``."""


def created(
    session: Sync | Raw,
    task: Handler[Any, Any] | str | None = None,
    payload: Any = ...,
    *,
    test: Test | None = None,
    **where: Unpack[Where],
) -> list[Task]:
    """Return the tasks that ``session`` sees and that fit, oldest first.

    ``session`` is what ``create_task`` takes; the tasks need not be committed. They may be in any
    pool: after a drain they are found as well. A dict as ``payload`` (or as ``headers``) must be
    contained in that of the task; ``test`` is a function that says whether a task fits.

    >>> task_id = create_task(session, send_mail, {"to": "b@example.org"}, delay="1h")
    >>> (task,) = created(session, "mail.send", {"to": "b@example.org"}, delay="1h")
    """
    tests = _tests_of(task, payload, test, where)
    return _fitting(_all(session), tests)


def assert_created(
    session: Sync | Raw,
    task: Handler[Any, Any] | str | None = None,
    payload: Any = ...,
    *,
    count: int | None = None,
    test: Test | None = None,
    **where: Unpack[Where],
) -> list[Task]:
    """Assert that such tasks were created: ``count`` of them, or at least one. Return them.

    The arguments are those of :func:`created`. ``count=0``: none was.

    >>> task_id = create_task(session, send_mail, {"to": "b@example.org"}, queue="mails")
    >>> tasks = assert_created(session, send_mail, {"to": "b@example.org"}, count=1, queue="mails")

    Raises:
        AssertionError: it says what was created instead.
    """
    tests = _tests_of(task, payload, test, where)
    tasks = _all(session)
    found = _fitting(tasks, tests)
    if len(found) == count or (count is None and found):
        return found
    wanted = "at least 1" if count is None else str(count)
    name, *others = tests
    expected = f"{name}{' with ' * bool(others)}{', '.join(others)}"
    instead = _instead(tasks, tests[name])
    raise AssertionError(f"{len(found)} instead of {wanted} were created of {expected}. {instead}")


acreated: Final = made_async(created)
aassert_created: Final = made_async(assert_created)


def _all(session: Sync | Raw) -> list[Task]:
    with on_connection(session) as connection:
        found = browse.find_tasks(connection, most=MOST_READ)[::-1]
        return [load_large_values(connection, task) for task in found]


def _tests_of(
    task: Handler[Any, Any] | str | None, payload: Any, test: Test | None, where: Mapping[str, Any]
) -> dict[str, Test]:
    """Return what must be so of a task, by the words for it; the test of its name comes first."""
    if unknown := where.keys() - Where.__annotations__.keys():
        known = ", ".join(Where.__annotations__)
        raise TypeError(f"A created task has no {', '.join(sorted(unknown))}. It has: {known}.")
    name = None if task is None else name_of(task)
    tests: dict[str, Test] = {name or "task": lambda task: name in {None, task.name}}
    if payload is not ...:
        part = _as_json(task, payload)
        tests[f"payload {_shown(part)}"] = lambda task: _contains(task.payload, part)
    for key, value in where.items():
        tests[f"{key} {value!r}"] = partial(_fits, key, value)
    if test is not None:
        tests[f"test {getattr(test, '__name__', 'given')}"] = test
    return tests


def _fitting(tasks: Sequence[Task], tests: Mapping[str, Test]) -> list[Task]:
    return [task for task in tasks if all(test(task) for test in tests.values())]


def _instead(tasks: Sequence[Task], has_name: Test) -> str:
    """Say what was created: those of the name first."""
    if not tasks:
        return "Nothing was created."
    near = sorted(tasks, key=lambda task: (not has_name(task), task.id))
    lines = [f"  {_described(task)}" for task in near[:MOST_SHOWN]]
    if len(near) > MOST_SHOWN:
        lines.append(f"  and {len(near) - MOST_SHOWN} more")
    return "\n".join(["Created were:", *lines])


def _as_json(task: Handler[Any, Any] | str | None, payload: Any) -> Any:
    if payload is None:
        return {}
    kind = task.spec.payload_type if isinstance(task, Handler) else None
    if kind is not None and kind.wraps(payload):
        payload = {"value": payload}
    return to_jsonable_python(TypeAdapter(Any).dump_python(payload, mode="json"))


def _contains(whole: Any, part: Any) -> bool:
    """Whether each key of ``part`` is in ``whole`` with that value; lists must be equal."""
    if isinstance(part, Mapping) and isinstance(whole, Mapping):
        return all(key in whole and _contains(whole[key], value) for key, value in part.items())
    return bool(whole == part)


def _fits(key: str, value: Any, task: Task) -> bool:
    match key:
        case "delay":
            return task.due_at - task.created_at == named_duration("delay", value)
        case "run_at":
            return bool(task.due_at == value)
        case "limit_key":
            keys = [] if task.limit_key is None else [task.limit_key, *(task.more_limit_keys or ())]
            return keys == ([value] if isinstance(value, str) else list(value or ()))
        case "headers":
            return _contains(task.headers or {}, value)
        case _:
            return bool(getattr(task, key) == value)


def _described(task: Task) -> str:
    """Return what a task is, in one line."""
    more = [f"payload {_shown(task.payload)}"]
    more += [
        f"{key} {value!r}"
        for key in _SHOWN
        if (value := getattr(task, key)) not in (None, _DEFAULTS.get(key))
    ]
    if task.due_at != task.created_at:
        more.append(f"delay {format_duration(task.due_at - task.created_at)}")
    more += [f"headers {_shown(task.headers)}"] if task.headers else []
    text = f"{task.name} ({task.id}, {task.state}): {', '.join(more)}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
