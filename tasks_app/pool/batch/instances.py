"""Instances of batch jobs. Whoever decides about one locks its row first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from tasks_app.domain.batch.records import Batch, BatchStatus
from tasks_app.pool.tables import BATCH, NOW, PENDING

_COLUMNS = "id, job, params, status, run, created_at, started_at, ended_at, error"
_ADD = text(f"""
    INSERT INTO {BATCH} (job, identity, params, created_at, started_at)
    VALUES (:job, :identity, CAST(:params AS jsonb), {NOW}, {NOW})
    ON CONFLICT (job, identity) WHERE status <> 'ABANDONED' DO NOTHING
    RETURNING {_COLUMNS}
""")
_LOCK_SAME = text(f"""
    SELECT {_COLUMNS} FROM {BATCH}
    WHERE job = :job AND identity = :identity AND status <> 'ABANDONED' FOR UPDATE
""")
_GET = text(f"SELECT {_COLUMNS} FROM {BATCH} WHERE id = :id")
_LOCK = text(f"SELECT {_COLUMNS} FROM {BATCH} WHERE id = :id FOR UPDATE")
_LOCK_IF_FREE = text(f"SELECT {_COLUMNS} FROM {BATCH} WHERE id = :id FOR UPDATE SKIP LOCKED")
_LIST = text(f"""
    SELECT {_COLUMNS} FROM {BATCH}
    WHERE (CAST(:job AS text) IS NULL OR job = :job)
      AND (CAST(:status AS text) IS NULL OR status = :status)
    ORDER BY id DESC LIMIT :most
""")
_CHANGE = text(f"""
    UPDATE {BATCH} SET status = :status, error = :error,
        ended_at = CASE WHEN :status IN ('RUNNING', 'STOPPING') THEN NULL ELSE {NOW} END
    WHERE id = :id
""")
_AGAIN = text(f"""
    UPDATE {BATCH} SET status = 'RUNNING', run = run + 1, started_at = {NOW}, ended_at = NULL,
        error = NULL, params = CAST(:params AS jsonb)
    WHERE id = :id RETURNING {_COLUMNS}
""")
_ALIVE = text(f"SELECT p.id FROM {PENDING} p WHERE p.biz_key = :key ORDER BY p.id LIMIT :most")
_WAITING = text(f"""
    SELECT p.id FROM {PENDING} p
    WHERE p.biz_key = :key AND p.state = 'PENDING' AND right(p.name, 5) <> :deciding ORDER BY p.id
""")
_RUNNING = text(f"""
    SELECT count(*) FROM {PENDING} p WHERE p.biz_key = :key AND p.state = 'RUNNING'
""")
_CLOCK = text("SELECT statement_timestamp()")
MOST_ALIVE = 100_000


def biz_key(batch_id: int) -> str:
    """Return what all tasks of an instance have in common."""
    return f"batch:{batch_id}"


def add(
    connection: Connection,
    job: str,
    identity: str,
    params: Mapping[str, Any],
    *,
    now: datetime | None = None,
) -> Batch | None:
    """Insert an instance; None: there is one already. Waits for who inserts the same just now."""
    values = {"job": job, "identity": identity, "params": json.dumps(dict(params)), "now": now}
    return _batch(connection.execute(_ADD, values).first())


def lock_same(connection: Connection, job: str, identity: str) -> Batch | None:
    """Return the instance with this identity, locked; None: there is none."""
    return _batch(connection.execute(_LOCK_SAME, {"job": job, "identity": identity}).first())


def lock(connection: Connection, batch_id: int) -> Batch | None:
    """Return an instance, locked until the transaction ends; None: there is none."""
    return _batch(connection.execute(_LOCK, {"id": batch_id}).first())


def lock_if_free(connection: Connection, batch_id: int) -> Batch | None:
    """Return an instance, locked; None: there is none, or somebody else decides about it now."""
    return _batch(connection.execute(_LOCK_IF_FREE, {"id": batch_id}).first())


def get(connection: Connection, batch_id: int) -> Batch | None:
    """Return an instance; None: there is none."""
    return _batch(connection.execute(_GET, {"id": batch_id}).first())


def find(
    connection: Connection, *, job: str | None = None, status: str | None = None, most: int = 50
) -> list[Batch]:
    """Return instances, newest first."""
    rows = connection.execute(_LIST, {"job": job, "status": status, "most": most})
    return [batch for row in rows if (batch := _batch(row)) is not None]


def change(
    connection: Connection,
    batch_id: int,
    status: BatchStatus,
    error: str | None = None,
    *,
    now: datetime | None = None,
) -> None:
    """Set how an instance stands."""
    connection.execute(_CHANGE, {"id": batch_id, "status": str(status), "error": error, "now": now})


def begin_again(
    connection: Connection,
    batch_id: int,
    params: Mapping[str, Any],
    *,
    now: datetime | None = None,
) -> Batch:
    """Start the next run; parameters that do not identify may be new."""
    values = {"id": batch_id, "params": json.dumps(dict(params)), "now": now}
    begun = _batch(connection.execute(_AGAIN, values).one())
    assert begun is not None  # noqa: S101  one() raised otherwise
    return begun


def alive(connection: Connection, batch_id: int, most: int = MOST_ALIVE) -> list[int]:
    """Return ids of an instance's tasks that wait or run, lowest first."""
    values = {"key": biz_key(batch_id), "most": most}
    return list(connection.execute(_ALIVE, values).scalars())


def running(connection: Connection, batch_id: int) -> int:
    """Return how many tasks of an instance run."""
    return int(connection.execute(_RUNNING, {"key": biz_key(batch_id)}).scalar_one())


def clock(connection: Connection) -> datetime:
    """Return the database's time."""
    at: datetime = connection.execute(_CLOCK).scalar_one()
    return at


def waiting(connection: Connection, batch_id: int) -> list[int]:
    """Return the tasks of an instance that wait, lowest first; not those that decide about it."""
    values = {"key": biz_key(batch_id), "deciding": ":join"}
    return list(connection.execute(_WAITING, values).scalars())


def _batch(row: Row[Any] | None) -> Batch | None:
    if row is None:
        return None
    return Batch(
        row.id,
        row.job,
        row.params,
        BatchStatus(row.status),
        row.run,
        row.created_at,
        row.started_at,
        row.ended_at,
        row.error,
    )
