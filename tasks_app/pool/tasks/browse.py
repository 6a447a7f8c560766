"""Reads of tasks for people and pages. Never locks, never writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.errors import UnreadableTaskError
from tasks_app.domain.tasks.call_payload import CALL_ID
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.records import Attempt, Task
from tasks_app.domain.tasks.states import Pool, State, pool_of
from tasks_app.pool.fragments.conditions import OPEN_NEEDS, is_held, own_date, queue_runs
from tasks_app.pool.tables import (
    ALL,
    ATTEMPT,
    COMPLETED,
    ERROR,
    GROUP_IDS,
    GROUP_OF_ROW,
    NOW,
    PENDING,
    Clock,
)

_JSON = {"payload", "headers", "result"}
_FINGERPRINT = f"""CASE t.pool WHEN 'error' THEN (
    SELECT encode(e.fingerprint, 'hex') FROM {ERROR} e WHERE e.id = t.id) END"""
_STORED = {
    "group_id": GROUP_OF_ROW,
    "fingerprint": _FINGERPRINT,
    "due_at": own_date("t"),
    "held": is_held("t"),
    "waits_for": OPEN_NEEDS,
    **{name: f"t.{name}::text" for name in _JSON},
}
_COLUMNS = ", ".join(f"{_STORED.get(f.name, f't.{f.name}')} AS {f.name}" for f in fields(Task))
_GET = text(f"SELECT {_COLUMNS} FROM {ALL} t WHERE t.id = :id")
_OF_CALL = text(f"""
    SELECT t.id FROM {ALL} t WHERE t.biz_key = :given AND t.headers->>'{CALL_ID}' = :given
    ORDER BY t.id DESC LIMIT 1""")
_MATCHING = f"""
    WHERE (CAST(:pool AS text) IS NULL OR t.pool = :pool)
      AND (CAST(:state AS text) IS NULL OR t.state = :state)
      AND (CAST(:name AS text) IS NULL OR t.name = :name)
      AND (CAST(:queue AS text) IS NULL OR t.queue = :queue)
      AND (CAST(:biz_key AS text) IS NULL OR t.biz_key = :biz_key)
      AND (CAST(:sub_status AS text) IS NULL OR t.sub_status = :sub_status)
      AND (CAST(:held AS boolean) IS NULL OR {is_held("t")} = :held)
      AND (CAST(:fingerprint AS text) IS NULL OR t.id = ANY(ARRAY(
            SELECT e.id FROM {ERROR} e WHERE e.fingerprint = decode(:fingerprint, 'hex'))))
      AND (CAST(:before AS bigint) IS NULL OR t.id < :before)
    ORDER BY t.id DESC LIMIT :most
"""
_FIND = text(f"SELECT {_COLUMNS} FROM {ALL} t {_MATCHING}")
_FIND_MEMBERS = text(f"""
    SELECT {_COLUMNS}
    FROM (SELECT unnest(i.ids) AS id FROM {GROUP_IDS} i WHERE i.group_id = :group) AS m
    JOIN {ALL} t ON t.id = m.id {_MATCHING}""")
_ATTEMPTS = text(f"""
    SELECT task_id, attempt, event, kind, message, traceback, owner, started_at, ended_at,
        encode(fingerprint, 'hex') AS fingerprint, encrypted_message
    FROM {ATTEMPT} WHERE task_id = :id ORDER BY attempt, ended_at""")
_LAST_CAUSES = text(f"""
    SELECT i.id, a.kind, a.message FROM unnest(CAST(:ids AS bigint[])) AS i(id)
    CROSS JOIN LATERAL (
        SELECT a.kind, a.message FROM {ATTEMPT} a WHERE a.task_id = i.id
        ORDER BY a.attempt DESC, a.ended_at DESC LIMIT 1) AS a""")
_OUTLINES = text(f"""
    SELECT t.id, t.state, t.name, t.queue, t.biz_key, t.attempt, t.failures, t.error
    FROM {ALL} t WHERE t.id = ANY(CAST(:ids AS bigint[])) ORDER BY t.id""")
_PAYLOADS = text(f"""
    SELECT t.id, t.name, t.payload::text AS payload FROM {ALL} t
    WHERE t.id = ANY(CAST(:ids AS bigint[]))""")
_ENDED_LATELY = text(f"""
    SELECT t.id FROM {ALL} t
    WHERE t.id = ANY(CAST(:ids AS bigint[]))
      AND t.finished_at > statement_timestamp() - CAST(:within AS interval)""")
_STATS = text(f"""
    SELECT name, queue, state, count(*) AS number,
        min(due_at) FILTER (WHERE state = '{State.PENDING}' AND due_at <= {NOW}) AS oldest_due_at,
        NOT ({queue_runs("t.queue")}) AS paused
    FROM (SELECT name, queue, state, due_at FROM {PENDING}
          UNION ALL SELECT name, queue, state, due_at FROM {ERROR}
          UNION ALL SELECT name, queue, state, due_at FROM {COMPLETED}) t
    GROUP BY name, queue, state ORDER BY name, queue, state""")


@dataclass(frozen=True, slots=True)
class Outline:
    id: int
    state: State
    name: str
    queue: str
    biz_key: str | None
    attempt: int
    failures: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Count:
    name: str
    queue: str
    state: State
    number: int
    oldest_due_at: datetime | None  # of PENDING tasks that are due
    paused: bool  # or outside its windows, or behind its gate


def get(connection: Connection, task_id: int) -> Task | None:
    row = connection.execute(_GET, {"id": task_id}).first()
    return None if row is None else _task(row)


def id_of_call(connection: Connection, given: str) -> int | None:
    """Return the newest task of Celery's calls with this ``task_id``; the biz_key finds it."""
    found: int | None = connection.execute(_OF_CALL, {"given": given}).scalar()
    return found


def outlines(connection: Connection, ids: Sequence[int]) -> list[Outline]:
    rows = connection.execute(_OUTLINES, {"ids": sorted(map(int, ids))}) if ids else ()
    return [Outline(row.id, State(row.state), *row[2:]) for row in rows]


def payloads(connection: Connection, ids: Sequence[int]) -> list[tuple[int, str, Any]]:
    rows = connection.execute(_PAYLOADS, {"ids": list(ids)})
    return [(row.id, row.name, _readable(row.payload)) for row in rows]


def ended_lately(connection: Connection, ids: Sequence[int], within: timedelta) -> set[int]:
    values = {"ids": sorted(map(int, ids)), "within": within}
    return set(connection.execute(_ENDED_LATELY, values).scalars())


def find_tasks(  # noqa: PLR0913  filters, all by keyword
    connection: Connection,
    *,
    pool: str | None = None,
    state: str | None = None,
    name: str | None = None,
    queue: str | None = None,
    biz_key: str | None = None,
    group: int | None = None,
    fingerprint: str | None = None,
    held: bool | None = None,
    sub_status: str | None = None,
    before: int | None = None,
    most: int = 50,
) -> list[Task]:
    """Return matching tasks, newest id first, below ``before``; of a ``group`` its members."""
    if pool is None and state in list(State):
        pool = pool_of(State(state))  # or the other pools would be read in vain
    if fingerprint is not None:
        pool = pool or Pool.ERROR
    if held:
        pool = pool or Pool.PENDING
    values: dict[str, Any] = {"pool": pool, "state": state, "name": name, "queue": queue}
    values |= {"biz_key": biz_key, "fingerprint": fingerprint, "held": held}
    values |= {"sub_status": sub_status, "before": before, "most": most, "group": group}
    rows = connection.execute(_FIND if group is None else _FIND_MEMBERS, values)
    return [_task(row) for row in rows]


def failed_attempts(connection: Connection, task_id: int) -> list[Attempt]:
    """Return the attempts without success, oldest first."""
    return [Attempt(*row) for row in connection.execute(_ATTEMPTS, {"id": task_id})]


def last_causes(connection: Connection, ids: Sequence[int]) -> dict[int, str]:
    """Return the error of the newest attempt without success of each task, by id."""
    rows = connection.execute(_LAST_CAUSES, {"ids": list(ids)}) if ids else ()
    return {row.id: f"{row.kind}: {row.message}".removesuffix(": ") for row in rows}


def count_tasks(connection: Connection, *, now: Clock = None) -> Sequence[Count]:
    """Count all tasks by name, queue and state. Reads every row: do not call it often."""
    return [
        Count(row.name, row.queue, State(row.state), row.number, row.oldest_due_at, row.paused)
        for row in connection.execute(_STATS, {"now": now})
    ]


def _task(row: Any) -> Task:
    values = dict(row._mapping)  # noqa: SLF001  SQLAlchemy's public name for it
    for name in _JSON:
        values[name] = _readable(values[name])
    values["state"] = State(values["state"])
    return Task(**values)


def _readable(value: str | None) -> Any:
    """Decode JSON that other programs may have written; None: it is not readable."""
    try:
        return None if value is None else decode(value, "value")
    except UnreadableTaskError:
        return None
