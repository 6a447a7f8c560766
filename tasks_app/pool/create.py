"""Create: rows in the caller's transaction, and nothing else: no broker, no NOTIFY, no commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.errors import TasksError
from tasks_app.domain.states import State
from tasks_app.domain.task import TaskId, TaskRow
from tasks_app.pool.tables import NOW, PENDING

log = logging.getLogger(__name__)

CHUNK = 2_000
"""Rows per statement of :func:`create_many`."""
TRIES = 10
"""How often a unique_key may change hands between our INSERT and our look at its holder."""

_COLUMNS = (
    "name, queue, priority, biz_key, unique_key, payload, headers, enabled, retry_level,"
    " max_attempts, retry, due_at, scan_at, expires_at, timeout_ms, hard_timeout_ms, created_at"
)
_ON_CONFLICT = "ON CONFLICT (name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING RETURNING id"
_DUE = f"coalesce(CAST(:run_at AS timestamptz), {NOW}) + CAST(:delay AS interval)"

_ONE = text(f"""
    INSERT INTO {PENDING} ({_COLUMNS})
    VALUES (:name, :queue, :priority, :biz_key, :unique_key, CAST(:payload AS jsonb),
        CAST(:headers AS jsonb), :enabled, :retry_level, :max_attempts, :retry, {_DUE},
        {_DUE} + CAST(:hint_wait AS interval), :expires_at, :timeout_ms, :hard_timeout_ms, {NOW})
    {_ON_CONFLICT}
""")

_IDS = text(f"""
    SELECT nextval(pg_get_serial_sequence('{PENDING.replace('"', "")}', 'id'))
    FROM generate_series(1, :number)
""")

_MANY = text(f"""
    INSERT INTO {PENDING} (id, {_COLUMNS})
    SELECT n.id, n.name, n.queue, n.priority, n.biz_key, n.unique_key, n.payload::jsonb,
        n.headers::jsonb, n.enabled, n.retry_level, n.max_attempts, n.retry, d.due_at,
        d.due_at + n.hint_wait, n.expires_at, n.timeout_ms, n.hard_timeout_ms, {NOW}
    FROM unnest(
        CAST(:id AS bigint[]), CAST(:name AS text[]), CAST(:queue AS text[]),
        CAST(:priority AS smallint[]), CAST(:biz_key AS text[]), CAST(:unique_key AS text[]),
        CAST(:payload AS text[]), CAST(:headers AS text[]), CAST(:enabled AS boolean[]),
        CAST(:retry_level AS smallint[]), CAST(:max_attempts AS smallint[]),
        CAST(:retry AS text[]), CAST(:run_at AS timestamptz[]), CAST(:delay AS interval[]),
        CAST(:expires_at AS timestamptz[]), CAST(:timeout_ms AS integer[]),
        CAST(:hard_timeout_ms AS integer[]), CAST(:hint_wait AS interval[]))
        AS n(id, name, queue, priority, biz_key, unique_key, payload, headers, enabled, retry_level,
             max_attempts, retry, run_at, delay, expires_at, timeout_ms, hard_timeout_ms,
             hint_wait)
    CROSS JOIN LATERAL (SELECT coalesce(n.run_at, {NOW}) + n.delay AS due_at) AS d
    ORDER BY n.name COLLATE "C", n.unique_key COLLATE "C", n.id
    {_ON_CONFLICT}
""")

_HOLDER = text(f"SELECT id, state FROM {PENDING} WHERE name = :name AND unique_key = :unique_key")
_FIELDS = tuple(TaskRow.__dataclass_fields__)


def create_one(connection: Connection, row: TaskRow, *, now: datetime | None = None) -> TaskId:
    """Insert one task; ``.created`` is False when its unique_key is taken.

    Raises:
        TasksError: the key is taken by a row that this transaction's snapshot cannot see.
    """
    values = {**_values(row), "now": now}
    for _ in range(TRIES):
        task_id = connection.execute(_ONE, values).scalar()
        if task_id is not None:
            return TaskId(task_id)
        holder = _holder(connection, row)
        if holder is not None:
            return holder
    raise _elusive(row)


def create_many(
    connection: Connection, rows: Sequence[TaskRow], *, now: datetime | None = None
) -> list[TaskId]:
    """Insert any number of tasks, 2,000 per statement; ids rise in the order of ``rows``.

    Keys are taken in one order (Python's, which is that of the bytes, whatever the database sorts
    by), so that two producers with the same keys cannot deadlock. Of equal keys the first wins.

    Raises:
        TasksError: as :func:`create_one`.
    """
    ids = connection.execute(_IDS, {"number": len(rows)}).scalars().all()
    order = sorted(range(len(rows)), key=lambda i: (rows[i].name, rows[i].unique_key or ""))
    made: dict[int, TaskId] = {}
    for start in range(0, len(order), CHUNK):
        places = order[start : start + CHUNK]
        inserted = _insert(connection, [ids[i] for i in places], [rows[i] for i in places], now)
        for i in places:
            created = ids[i] in inserted
            made[i] = TaskId(ids[i]) if created else _existing(connection, rows[i], now)
    return [made[i] for i in range(len(rows))]


def _insert(
    connection: Connection, ids: Sequence[int], rows: Sequence[TaskRow], now: datetime | None
) -> set[int]:
    values = [_values(row) for row in rows]
    columns: dict[str, Any] = {name: [v[name] for v in values] for name in _FIELDS}
    return set(connection.execute(_MANY, {**columns, "id": ids, "now": now}).scalars())


def _existing(connection: Connection, row: TaskRow, now: datetime | None) -> TaskId:
    return _holder(connection, row) or create_one(connection, row, now=now)


def _holder(connection: Connection, row: TaskRow) -> TaskId | None:
    found = connection.execute(_HOLDER, {"name": row.name, "unique_key": row.unique_key}).first()
    if found is None:
        return None
    if found.state == State.RUNNING:
        log.warning(
            "unique_key of a new %s is held by task %s, which is RUNNING: no task was created. "
            "A handler that wants to run again raises Retry or Snooze.",
            row.name,
            found.id,
        )
    return TaskId(found.id, created=False)


def _elusive(row: TaskRow) -> TasksError:
    return TasksError(
        f"unique_key {row.unique_key!r} of {row.name} is held by a task that this transaction "
        "cannot see. Use READ COMMITTED, or try the transaction again."
    )


def _values(row: TaskRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _FIELDS}
