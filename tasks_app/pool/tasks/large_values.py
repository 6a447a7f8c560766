"""Large values: written in the transaction of their row, read, and removed when unneeded.

A value never changes, and belongs to one task. It is needed while the task's row refers to it, and
while the task runs, as a result is written before the row that refers to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.domain.errors import TasksError
from tasks_app.domain.large_values.store import PAYLOAD, REFERENCE_MARK, LargePayload, Reference
from tasks_app.domain.tasks.records import CreateOutcome, TaskId, TaskRow
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.execute import Statement, Statements, commits_itself, run_statements
from tasks_app.pool.tables import COMPLETED, ERROR, FLOW_STEP, LARGE_VALUE, PENDING

if TYPE_CHECKING:
    from tasks_app.pool.connection.psycopg_connection import Raw

LOOKED_AT = 500  # values per statement: each costs a look into every day of the completed pool
FIRST = UUID(int=0)

_KEEP = f"""
    INSERT INTO {LARGE_VALUE} (id, task_id, kind, bytes, content)
    VALUES (%(id)s, %(task_id)s, %(kind)s, %(bytes)s, %(content)s)
"""
_READ = text(f"SELECT content FROM {LARGE_VALUE} WHERE id = :id AND task_id = :task_id")
_IS_THERE = f"-> '{REFERENCE_MARK}' ->> 'id' = l.id::text"
_RUNS_OR_HAS = f"(p.state = '{State.RUNNING}' OR p.payload {_IS_THERE})"
_LOST = text(f"""
    WITH looked AS MATERIALIZED (
        SELECT v.id, v.task_id FROM {LARGE_VALUE} v WHERE v.id > :after ORDER BY v.id LIMIT :most),
    lost AS MATERIALIZED (
        SELECT l.id FROM looked l
        WHERE (SELECT true FROM {PENDING} p WHERE p.id = l.task_id AND {_RUNS_OR_HAS} LIMIT 1)
            IS NULL
          AND (SELECT true FROM {ERROR} e WHERE e.id = l.task_id AND e.payload {_IS_THERE} LIMIT 1)
            IS NULL
          AND (SELECT true FROM {FLOW_STEP} s WHERE s.task_id = l.task_id AND s.result {_IS_THERE})
            IS NULL
          AND (SELECT true FROM {COMPLETED} c WHERE c.id = l.task_id
                 AND (c.payload {_IS_THERE} OR c.result {_IS_THERE}) LIMIT 1) IS NULL),
    gone AS (
        DELETE FROM {LARGE_VALUE} v WHERE v.id = ANY(ARRAY(SELECT id FROM lost)) RETURNING v.id)
    SELECT count(*) AS seen, (array_agg(l.id ORDER BY l.id DESC))[1] AS after,
        (SELECT count(*) FROM gone) AS gone
    FROM looked l""")
_UNKNOWN = text(f"""
    SELECT k.id FROM unnest(CAST(:ids AS uuid[])) AS k(id)
    WHERE NOT EXISTS (SELECT FROM {LARGE_VALUE} v WHERE v.id = k.id)""")
_OUTSIDE = text(f"""
    SELECT v.id FROM {LARGE_VALUE} v
    WHERE v.task_id = ANY(CAST(:ids AS bigint[])) AND v.content IS NULL""")


class StoredValue(NamedTuple):
    content: str | None  # JSON text; None: an object store has it


def with_values(
    rows: Sequence[TaskRow], plan: Statements[list[TaskId]]
) -> Statements[list[TaskId]]:
    """Run the plan that creates rows, and write the large payloads of the tasks that it created."""
    ids = yield from plan
    for row, task_id in zip(rows, ids, strict=True):
        taken = task_id.created or task_id.outcome is CreateOutcome.REPLACED
        if isinstance(row.payload, LargePayload) and taken:
            yield _keep(row.payload, task_id, PAYLOAD)
    return ids


def with_value(row: TaskRow, plan: Statements[TaskId]) -> Statements[TaskId]:
    def listed() -> Statements[list[TaskId]]:
        return [(yield from plan)]

    return (yield from with_values((row,), listed()))[0]


def check_transaction(connection: Connection | Raw) -> None:
    """Raise if the task would exist, and might run, before its payload exists."""
    if commits_itself(connection):
        raise TasksError(
            "A payload outside of its row needs a transaction. Use a connection without AUTOCOMMIT."
        )


def has_large(rows: Sequence[TaskRow]) -> bool:
    return any(type(row[0]) is LargePayload for row in rows)


def write_value(connection: Connection, value: LargePayload, task_id: int, kind: str) -> None:
    """Write a value of a task, which must run until its row refers to the value."""

    def plan() -> Statements[None]:
        yield _keep(value, task_id, kind)

    run_statements(connection, plan())


def _keep(value: LargePayload, task_id: int, kind: str) -> Statement:
    reference = value.reference
    values = {"id": reference.id, "task_id": int(task_id), "kind": kind}
    values |= {"bytes": reference.bytes, "content": value.content}
    return Statement(_KEEP, values, yields=False)


def read(connection: Connection, task_id: int, reference: Reference) -> StoredValue | None:
    row = connection.execute(_READ, {"id": reference.id, "task_id": task_id}).first()
    return None if row is None else StoredValue(row.content)


def remove_lost(
    connection: Connection, after: UUID = FIRST, *, most: int = LOOKED_AT
) -> tuple[UUID | None, int]:
    """Remove unneeded values among the next ``most``: the task is gone, or has another value."""
    # Return the value to go on after, None at the end, and how many were removed.
    step = connection.execute(_LOST, {"after": after, "most": most}).one()
    return (None if step.seen < most else step.after), step.gone


def unknown_values(connection: Connection, ids: Sequence[UUID]) -> list[UUID]:
    return list(connection.execute(_UNKNOWN, {"ids": list(ids)}).scalars())


def values_in_object_store(connection: Connection, task_ids: Sequence[int]) -> list[UUID]:
    """Return the ids of these tasks' values in an object store."""
    return list(connection.execute(_OUTSIDE, {"ids": list(task_ids)}).scalars())
