"""What stands outside of a task's row, for who asks for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection

from tasks_app.domain.large_values.reference import PAYLOAD, RESULT, reference_of
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.records import Task
from tasks_app.pool.tasks.large_values import read
from tasks_app.runtime.db.connections import Raw, Sync, made_async, on_connection
from tasks_app.runtime.encryption.values import opened_task
from tasks_app.runtime.large_values.values import large_values


def load_large_values(session: Sync | Raw, task: Task) -> Task:
    """Return a task that ``get_task`` gave, with its payload and result in full.

    What stands in its row is left as it is; a value whose key is missing stays encrypted.

    >>> task = load_large_values(session, get_task(session, task_id))
    >>> task.payload
    {'to': 'a@example.org'}

    Raises:
        LargeValueLostError: the task has gone meanwhile, or what keeps its values has lost one.
        LargeStoreError: the object store does not answer.
    """
    return on_connection(session, partial(in_full, task=task))


aload_large_values: Final = made_async(load_large_values)


def in_full(connection: Connection, task: Task) -> Task:
    """Do it on a connection; the same errors."""
    full = replace(
        task,
        payload=_value(connection, task.id, task.payload, PAYLOAD),
        result=_value(connection, task.id, task.result, RESULT),
    )
    return opened_task(full)


def _value(connection: Connection, task_id: int, value: Any, kind: str) -> Any:
    reference = reference_of(value)
    if reference is None:
        return value
    stored = read(connection, task_id, reference)
    return decode(large_values().text_of(stored, reference, kind), kind)
