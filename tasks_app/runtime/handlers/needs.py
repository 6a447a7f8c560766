"""What a step of a flow reads of the steps, and the events, that it needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection

from tasks_app.domain.errors import TasksError
from tasks_app.domain.large_values.store import RESULT, reference_of
from tasks_app.domain.tasks.payload import decode
from tasks_app.pool.events import read_payloads
from tasks_app.pool.flows import NeededStep, needed_steps
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.encryption.values import opened_value
from tasks_app.runtime.large_values import large_values


def read_needs(access: Access, task_id: int) -> Any:
    """Return the needed steps by name, with their results; in an async handler, awaitably."""
    return _on(access, _read, task_id)


def read_events(access: Access, task_id: int) -> Any:
    """Return payloads of the events that the task waited for; in an async handler, awaitably."""
    return _on(access, read_payloads, task_id)


def _on(access: Access, read: Callable[[Connection, int], Any], task_id: int) -> Any:
    return _awaited(access, read, task_id) if access.is_async else read(access.connection, task_id)


async def _awaited(access: Access, read: Callable[[Connection, int], Any], task_id: int) -> Any:
    connection = await access.session.connection()
    return await connection.run_sync(read, task_id)


def _read(connection: Connection, task_id: int) -> dict[str, NeededStep]:
    needed = needed_steps(connection, task_id)
    return {name: step._replace(result=_result(connection, step)) for name, step in needed.items()}


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
    return _of_kind(needs[name].result, kind)


def payload_of(events: dict[str, Any], key: str, kind: Any) -> Any:
    """Return the payload of an event, of the type ``kind`` unless that is None; None: none came.

    Raises TasksError: the task does not wait for it; pydantic's ValidationError as result_of.
    """
    if key not in events:
        known = ", ".join(events) or "no event"
        raise TasksError(f"This task waits for {known}, and not {key!r:.60}. Name it in needs=.")
    return None if events[key] is None else _of_kind(events[key], kind)


def _of_kind(value: Any, kind: Any) -> Any:
    return value if kind is None else _adapter(kind).validate_python(value)


@lru_cache(256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
