"""Instances of batch jobs. A transaction that decides about one locks its row first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from tasks_app.domain.batch.records import Batch, BatchStatus
from tasks_app.pool.tables import BATCH, PENDING

_COLUMNS = "id, job, params, status, run, created_at, started_at, ended_at, error"
_ADD = text(f"""
    INSERT INTO {BATCH} (job, identity, params, created_at, started_at)
    VALUES (:job, :identity, CAST(:params AS jsonb), statement_timestamp(), statement_timestamp())
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
        ended_at = CASE WHEN :status NOT IN ('RUNNING', 'STOPPING') THEN statement_timestamp() END
    WHERE id = :id
""")
_AGAIN = text(f"""
    UPDATE {BATCH} SET status = 'RUNNING', run = run + 1, started_at = statement_timestamp(),
        ended_at = NULL, error = NULL, params = CAST(:params AS jsonb)
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
    return f"batch:{batch_id}"


def add(
    connection: Connection,
    job: str,
    identity: str,
    params: Mapping[str, Any],
) -> Batch | None:
    """Insert an instance; None: there is one. Waits for a transaction that inserts the same."""
    values = {"job": job, "identity": identity, "params": json.dumps(dict(params))}
    return _batch(connection.execute(_ADD, values).first())


def lock_same(connection: Connection, job: str, identity: str) -> Batch | None:
    return _batch(connection.execute(_LOCK_SAME, {"job": job, "identity": identity}).first())


def lock(connection: Connection, batch_id: int) -> Batch | None:
    """Return an instance, locked until the transaction ends; None: there is none."""
    return _batch(connection.execute(_LOCK, {"id": batch_id}).first())


def lock_if_free(connection: Connection, batch_id: int) -> Batch | None:
    """Return an instance, locked; None: there is none, or somebody has locked it."""
    return _batch(connection.execute(_LOCK_IF_FREE, {"id": batch_id}).first())


def get(connection: Connection, batch_id: int) -> Batch | None:
    return _batch(connection.execute(_GET, {"id": batch_id}).first())


def find(
    connection: Connection, *, job: str | None = None, status: str | None = None, most: int = 50
) -> list[Batch]:
    rows = connection.execute(_LIST, {"job": job, "status": status, "most": most})
    return [batch for row in rows if (batch := _batch(row)) is not None]


def change(
    connection: Connection,
    batch_id: int,
    status: BatchStatus,
    error: str | None = None,
) -> None:
    connection.execute(_CHANGE, {"id": batch_id, "status": str(status), "error": error})


def begin_again(
    connection: Connection,
    batch_id: int,
    params: Mapping[str, Any],
) -> Batch:
    """Start the next run; parameters that do not identify the instance may change."""
    values = {"id": batch_id, "params": json.dumps(dict(params))}
    begun = _batch(connection.execute(_AGAIN, values).one())
    assert begun is not None  # noqa: S101  one() raised otherwise
    return begun


def alive(connection: Connection, batch_id: int, most: int = MOST_ALIVE) -> list[int]:
    """Return ids of an instance's tasks that wait or run, lowest first."""
    values = {"key": biz_key(batch_id), "most": most}
    return list(connection.execute(_ALIVE, values).scalars())


def running(connection: Connection, batch_id: int) -> int:
    return int(connection.execute(_RUNNING, {"key": biz_key(batch_id)}).scalar_one())


def clock(connection: Connection) -> datetime:
    at: datetime = connection.execute(_CLOCK).scalar_one()
    return at


def waiting(connection: Connection, batch_id: int) -> list[int]:
    """Return the tasks of an instance that wait, lowest first; not its joins."""
    values = {"key": biz_key(batch_id), "deciding": ":join"}
    return list(connection.execute(_WAITING, values).scalars())


def _batch(row: Row[Any] | None) -> Batch | None:
    if row is None:
        return None
    return Batch(**{**row._asdict(), "status": BatchStatus(row.status)})
