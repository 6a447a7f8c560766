"""Rows for bulk operations."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import Connection, Engine

from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tests.factory import claimed_task, ending, pending_task, pool_of_task


def failed_task(
    connection: Connection,
    kind: str = "builtins.E",
    message: str = "m",
    *,
    traceback: str | None = None,
    **options: Any,
) -> int:
    task = claimed_task(connection, **options)
    cause = Cause(kind, message, traceback)
    settle_one(connection, ending(task, Event.FAIL, cause=cause))
    return task.task_id


def make(engine: Engine, number: int, **options: Any) -> list[int]:
    with engine.begin() as connection:
        return [int(pending_task(connection, **options)) for _ in range(number)]


def pools(engine: Engine, ids: list[int]) -> Counter[str | None]:
    with engine.connect() as connection:
        return Counter(pool_of_task(connection, one) for one in ids)
