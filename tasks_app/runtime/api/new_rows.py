"""What a producer gives becomes rows: checked, each by its handler."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks_app.domain.creation.new_task import NewTask
from tasks_app.domain.creation.validation import admit_alike, validate
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import Handler, HandlerSpec
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.runtime.api.foreign_tasks import translated
from tasks_app.runtime.handlers.registry import HANDLERS

if TYPE_CHECKING:
    pass


@functools.cache
def payload_limit() -> int:
    """Return how many bytes a payload may have."""
    from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

    return load_settings().payload_limit


def admitted(new: NewTask) -> TaskRow:
    """Return the row that :func:`create_task` would insert.

    Raises:
        InvalidTaskError: it is refused.
    """
    spec: HandlerSpec | None
    match new.task:
        case str():
            spec = HANDLERS.get(new.task)
        case Handler():
            spec = new.task.spec
        case _:
            new, spec = translated(new)
    return validate(new, spec, payload_limit())


def check_many(tasks: Any) -> None:
    """Pass if these are NewTasks, one after the other.

    Raises:
        InvalidTaskError: they are not.
    """
    allowed = "a list of NewTask(task, payload, …)"
    if not isinstance(tasks, Sequence):
        raise InvalidTaskError("tasks", f"is of type {type(tasks).__name__}", allowed)
    for place, new in enumerate(tasks):
        if not isinstance(new, NewTask):
            kind = type(new).__name__
            raise InvalidTaskError(f"tasks[{place}]", f"is of type {kind}", allowed)


def admitted_many(tasks: Sequence[NewTask]) -> list[TaskRow]:
    """Return the rows of all; most tasks of a big call are like the one before."""
    limit = payload_limit()
    rows: list[TaskRow] = []
    like, terms = None, None
    for place, new in enumerate(tasks):
        row = admit_alike(new, terms, limit) if terms and new.task is like else None
        if row is None:
            try:
                row = admitted(new)
            except InvalidTaskError as error:
                raise error.at(f"tasks[{place}]") from None
            plain = not new.options and _takes_anything(new.task)
            like, terms = (new.task, row.terms) if plain else (None, None)
        rows.append(row)
    return rows


def _takes_anything(task: object) -> bool:
    """Whether a name is nobody's here, or that of a handler that asks nothing of its payload."""
    if not isinstance(task, str):
        return False
    spec = HANDLERS.get(task)
    return spec is None or spec.payload_type is None
