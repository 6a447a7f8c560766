"""Transfer of waiting tasks: export from one database, import into another.

A task keeps its idempotency key, which identifies it. One import at a time writes the list of
imported tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.domain.portable_task import PortableTask
from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.conditions import is_held, own_date
from tasks_app.pool.tables import IMPORT, NOW, PENDING, Clock
from tasks_app.pool.tasks.create import create_many

_LEAVE = text(f"""
    SELECT p.id, p.name, p.queue, p.priority, p.biz_key, p.unique_key, p.order_key, p.order_skips,
        p.limit_key, p.more_limit_keys, p.weight, p.locks, p.fair_key, p.max_attempts, p.retry,
        p.timeout_ms, p.hard_timeout_ms, p.expires_at, p.enabled, p.idempotency_key, p.created_at,
        p.attempt, p.failures, p.crashes, p.retry_level, {own_date()} AS run_at,
        CAST(p.headers AS text) AS headers, CAST(p.payload AS text) AS payload, p.batch_id
    FROM {PENDING} p WHERE p.id = ANY(CAST(:ids AS bigint[])) AND p.state = '{State.PENDING}'
    ORDER BY p.id""")
_HERE = text(f"""
    SELECT p.id FROM unnest(CAST(:ids AS bigint[]), CAST(:keys AS uuid[])) AS k(id, key)
    JOIN {PENDING} p ON p.id = k.id AND p.idempotency_key = k.key
    WHERE NOT EXISTS (SELECT FROM {IMPORT} i WHERE i.idempotency_key = k.key)
    ORDER BY p.id""")
# Both databases may count from 1, so that a task has one id and one key in both.
_HELD = text(f"""
    SELECT p.id
    FROM unnest(CAST(:ids AS bigint[]), CAST(:keys AS uuid[]), CAST(:became AS bigint[]))
        AS k(id, key, became)
    JOIN {PENDING} p ON p.id = k.id AND p.idempotency_key = k.key
    WHERE p.state = '{State.PENDING}' AND {is_held()}
      AND NOT EXISTS (SELECT FROM {IMPORT} i
        WHERE k.became = k.id AND i.idempotency_key = k.key AND i.task_id = k.became)
    ORDER BY p.id""")
_KNOWN = text(f"""
    SELECT i.idempotency_key, i.task_id FROM {IMPORT} i
    WHERE i.idempotency_key = ANY(CAST(:keys AS uuid[]))""")
_CARRY = text(f"""
    UPDATE {PENDING} p SET idempotency_key = :key, created_at = :created_at, attempt = :attempt,
        failures = :failures, crashes = :crashes, retry_level = :retry_level
    WHERE p.id = :id""")
_NOTE = text(f"INSERT INTO {IMPORT} (idempotency_key, task_id) VALUES (:key, :id)")
_PRUNE = text(f"""
    WITH old AS MATERIALIZED (
        SELECT i.idempotency_key FROM {IMPORT} i
        WHERE i.imported_at < {NOW} - CAST(:older AS interval)
        ORDER BY i.imported_at LIMIT :most FOR UPDATE SKIP LOCKED)
    DELETE FROM {IMPORT} i USING old o WHERE i.idempotency_key = o.idempotency_key RETURNING 1""")


class ArrivedTask(NamedTuple):
    id: int
    idempotency_key: UUID
    became: int  # its id in the other database


def export_rows(connection: Connection, ids: Sequence[int]) -> Sequence[Any]:
    """Return the waiting ones of these rows; payloads as text."""
    return connection.execute(_LEAVE, {"ids": list(ids)}).all()


def already_in_pool(connection: Connection, tasks: Sequence[PortableTask]) -> list[int]:
    """Return the ids of those that wait in this pool, and were not imported into it."""
    values = {"ids": [task.id for task in tasks], "keys": [task.idempotency_key for task in tasks]}
    return list(connection.execute(_HERE, values).scalars())


def still_held_tasks(connection: Connection, moved: Sequence[ArrivedTask]) -> list[int]:
    """Return the ids of those that are held in this pool, and were not imported into it."""
    ids, keys, became = zip(*moved, strict=True)
    values = {"ids": list(ids), "keys": list(keys), "became": list(became)}
    return list(connection.execute(_HELD, values).scalars())


def insert_imported_tasks(connection: Connection, tasks: Sequence[PortableTask]) -> dict[UUID, int]:
    """Create tasks that were not imported before; return the ids of all imported ones, by key."""
    # A task whose unique_key is taken is left out. Other imports wait until the caller commits.
    connection.execute(text(f"LOCK TABLE {IMPORT} IN SHARE ROW EXCLUSIVE MODE"))
    keys = [task.idempotency_key for task in tasks]
    known = {
        row.idempotency_key: int(row.task_id) for row in connection.execute(_KNOWN, {"keys": keys})
    }
    new = {task.idempotency_key: task for task in tasks if task.idempotency_key not in known}
    ids = create_many(connection, [task.row for task in new.values()]) if new else []
    made = {key: task_id for key, task_id in zip(new, ids, strict=True) if task_id.created}
    if made:
        words = ("attempt", "failures", "crashes", "retry_level")
        connection.execute(
            _CARRY,
            [
                {
                    "id": int(task_id),
                    "key": key,
                    "created_at": new[key].created_at,
                    **dict(zip(words, new[key].life, strict=True)),
                }
                for key, task_id in made.items()
            ],
        )
        connection.execute(_NOTE, [{"key": key, "id": int(i)} for key, i in made.items()])
    return {**known, **{key: int(task_id) for key, task_id in made.items()}}


def prune(connection: Connection, older: timedelta, most: int, *, now: Clock = None) -> int:
    """Forget imports of this age; return how many."""
    return len(connection.execute(_PRUNE, {"older": older, "most": most, "now": now}).all())
