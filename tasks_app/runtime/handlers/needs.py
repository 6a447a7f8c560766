"""What a step of a flow reads of the steps, and the events, that it needs."""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection

from tasks_app.domain.errors import TasksError
from tasks_app.domain.events import EventNeed
from tasks_app.domain.flows import MAP_TASK, StepEnd
from tasks_app.domain.handlers.outcomes import WaitForNeeds
from tasks_app.domain.large_values.store import RESULT, reference_of
from tasks_app.domain.tasks.payload import decode
from tasks_app.pool.events import Awaited, await_one, read_payloads
from tasks_app.pool.flows import NeededStep, items_of, needed_steps
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.encryption.values import opened_value
from tasks_app.runtime.handlers.checkpoint import Checkpoint
from tasks_app.runtime.large_values import large_values


def read_needs(access: Access, task_id: int) -> Any:
    """Return the needed steps by name, with their results; in an async handler, awaitably."""
    return access.read(partial(_read, task_id=task_id))


def read_events(access: Access, task_id: int) -> Any:
    """Return payloads of the events that the task waited for; in an async handler, awaitably."""
    return access.read(partial(read_payloads, task_id=task_id))


def wait_for(access: Access, task_id: int, point: Checkpoint, need: EventNeed, kind: Any) -> Any:
    """Return the payload of an event, or None; in an async handler, awaitably.

    Raises WaitForNeeds: it was not sent, and what was done is committed.
    """
    found: Any = access.read(partial(await_one, task_id=task_id, need=need))
    if access.is_async:
        return _wait_for(found, point, need, kind)
    if found.is_open:
        point.commit()
        raise WaitForNeeds(_waits(need))
    return _payload(found, kind)


async def _wait_for(asked: Any, point: Any, need: EventNeed, kind: Any) -> Any:
    found: Awaited = await asked
    if found.is_open:
        await point.commit()
        raise WaitForNeeds(_waits(need))
    return _payload(found, kind)


def _waits(need: EventNeed) -> str:
    return f"It waits for event {need.key}."


def _payload(found: Awaited, kind: Any) -> Any:
    return None if found.payload is None else _of_kind(found.payload, kind)


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
