"""What a step of a flow reads of the steps that it needs."""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection

from tasks_app.domain.errors import TasksError
from tasks_app.domain.flows import MAP_TASK, StepEnd
from tasks_app.domain.large_values.store import RESULT, reference_of
from tasks_app.domain.tasks.payload import decode
from tasks_app.pool.flows import NeededStep, items_of, needed_steps
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.encryption.values import opened_value
from tasks_app.runtime.large_values import large_values


def read_needs(access: Access, task_id: int) -> Any:
    """Return the needed steps by name, with their results; in an async handler, awaitably."""
    return _awaited(access, task_id) if access.is_async else _read(access.connection, task_id)


async def _awaited(access: Access, task_id: int) -> dict[str, NeededStep]:
    connection = await access.session.connection()
    found: dict[str, NeededStep] = await connection.run_sync(_read, task_id)
    return found


def _read(connection: Connection, task_id: int) -> dict[str, NeededStep]:
    needed = needed_steps(connection, task_id)
    return {name: step._replace(result=_results(connection, step)) for name, step in needed.items()}


def _results(connection: Connection, step: NeededStep) -> Any:
    """Return the result of a step, of a map the list of its items' results."""
    if step.task == MAP_TASK and step.end is StepEnd.SUCCESS:
        return [_result(connection, item) for item in items_of(connection, step.task_id)]
    return _result(connection, step)


def _result(connection: Connection, step: NeededStep) -> Any:
    value, reference = step.result, reference_of(step.result)
    if reference is not None:
        values = large_values()
        text = values.load(lambda: nullcontext(connection), step.task_id, reference, RESULT)
        value = decode(text, RESULT)
    return opened_value(value, RESULT, step.task)


def result_of(needs: dict[str, NeededStep], name: str, kind: Any) -> Any:
    """Return the result of a needed step, of the type ``kind`` unless that is None.

    Raises TasksError: the step is not needed; pydantic's ValidationError: it is of another type.
    """
    if name not in needs:
        known = ", ".join(needs) or "no step"
        raise TasksError(f"This task needs {known}, and not {name!r:.60}. Name it in needs=.")
    result = needs[name].result
    return result if kind is None else _adapter(kind).validate_python(result)


@lru_cache(256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
