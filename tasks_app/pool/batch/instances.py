"""Instances of batch jobs and their steps: added, locked, changed, deleted when old."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import Batch, BatchStatus, BatchStep, StepStatus
from tasks_app.domain.config.retention import Keep
from tasks_app.pool import tables as t
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.retention import ages, too_old

_COLUMNS = "id, job, params, status, run, created_at, started_at, ended_at, error"


def biz_key(batch_id: int) -> str:
    return f"batch:{batch_id}"


def add(connection: Connection, job: str, identity: str, params: Mapping[str, Any]) -> Batch | None:
    """Insert an instance; None: there is one. Waits for a transaction that inserts the same."""
    query = f"""
        INSERT INTO {t.BATCH} (job, identity, params, created_at, started_at)
        VALUES (:job, :identity, CAST(:params AS jsonb), statement_timestamp(),
            statement_timestamp())
        ON CONFLICT (job, identity) WHERE status <> 'ABANDONED' DO NOTHING
        RETURNING {_COLUMNS}
    """
    values = {"job": job, "identity": identity, "params": json.dumps(dict(params))}
    return _one(connection, query, values)


def lock_same(connection: Connection, job: str, identity: str) -> Batch | None:
    query = f"""
        SELECT {_COLUMNS} FROM {t.BATCH}
        WHERE job = :job AND identity = :identity AND status <> 'ABANDONED' FOR UPDATE
    """
    return _one(connection, query, {"job": job, "identity": identity})


_GET = f"SELECT {_COLUMNS} FROM {t.BATCH} WHERE id = :id"


def get(connection: Connection, batch_id: int) -> Batch | None:
    return _one(connection, _GET, {"id": batch_id})


def lock(connection: Connection, batch_id: int) -> Batch | None:
    return _one(connection, f"{_GET} FOR UPDATE", {"id": batch_id})


def lock_if_free(connection: Connection, batch_id: int) -> Batch | None:
    """Return an instance, locked; None: there is none, or another transaction has locked it."""
    return _one(connection, f"{_GET} FOR UPDATE SKIP LOCKED", {"id": batch_id})


def restart(connection: Connection, batch_id: int, params: Mapping[str, Any]) -> Batch:
    """Start the next run; parameters that do not identify the instance may change."""
    query = f"""
        UPDATE {t.BATCH} SET status = 'RUNNING', run = run + 1, started_at = statement_timestamp(),
            ended_at = NULL, error = NULL, params = CAST(:params AS jsonb)
        WHERE id = :id RETURNING {_COLUMNS}
    """
    begun = _one(connection, query, {"id": batch_id, "params": json.dumps(dict(params))})
    assert begun is not None  # noqa: S101  the caller has locked it
    return begun


def _one(connection: Connection, query: str, values: dict[str, Any]) -> Batch | None:
    row = connection.execute(text(query), values).first()
    return None if row is None else Batch(**{**row._asdict(), "status": BatchStatus(row.status)})


def find(
    connection: Connection, *, job: str | None = None, status: str | None = None, most: int = 50
) -> list[Batch]:
    query = text(f"""
        SELECT {_COLUMNS} FROM {t.BATCH}
        WHERE (CAST(:job AS text) IS NULL OR job = :job)
          AND (CAST(:status AS text) IS NULL OR status = :status)
        ORDER BY id DESC LIMIT :most
    """)
    rows = connection.execute(query, {"job": job, "status": status, "most": most})
    return [Batch(**{**row._asdict(), "status": BatchStatus(row.status)}) for row in rows]


def set_status(
    connection: Connection, batch_id: int, status: BatchStatus, error: str | None = None
) -> None:
    query = text(f"""
        UPDATE {t.BATCH} SET status = :status, error = :error,
            ended_at = CASE WHEN :status NOT IN ('RUNNING', 'STOPPING')
                THEN statement_timestamp() END
        WHERE id = :id
    """)
    connection.execute(query, {"id": batch_id, "status": str(status), "error": error})


_TASKS = f"{t.PENDING} p WHERE p.biz_key = :key"


def unfinished_tasks(connection: Connection, batch_id: int, most: int = 100_000) -> list[int]:
    query = text(f"SELECT p.id FROM {_TASKS} ORDER BY p.id LIMIT :most")
    return list(connection.execute(query, {"key": biz_key(batch_id), "most": most}).scalars())


def waiting_tasks(connection: Connection, batch_id: int) -> list[int]:
    query = text(rf"""
        SELECT p.id FROM {_TASKS} AND p.state = 'PENDING' AND right(p.name, 5) <> '\:join'
        ORDER BY p.id
    """)
    return list(connection.execute(query, {"key": biz_key(batch_id)}).scalars())


def count_running(connection: Connection, batch_id: int) -> int:
    query = text(f"SELECT count(*) FROM {_TASKS} AND p.state = 'RUNNING'")
    return int(connection.execute(query, {"key": biz_key(batch_id)}).scalar_one())


def add_steps(connection: Connection, batch_id: int, steps: Sequence[str], run: int) -> None:
    """Insert those that are not there."""
    query = f"""
        INSERT INTO {t.BATCH_STEP} (batch_id, step, run)
        SELECT :batch_id, s.step, :run
        FROM unnest(CAST(:steps AS text[])) WITH ORDINALITY AS s(step, place) ORDER BY s.place
        ON CONFLICT DO NOTHING"""
    connection.execute(text(query), {"batch_id": batch_id, "steps": list(steps), "run": run})


def find_steps(connection: Connection, batch_id: int) -> dict[str, BatchStep]:
    """Return all steps of an instance by name, in the order of their starts; waiting ones last."""
    query = text(f"""
        SELECT batch_id, step, status, run, round, plan, result, started_at, ended_at, error
        FROM {t.BATCH_STEP} WHERE batch_id = :batch_id ORDER BY started_at, step
    """)
    rows = connection.execute(query, {"batch_id": batch_id})
    return {
        row.step: BatchStep(**{**row._asdict(), "status": StepStatus(row.status)}) for row in rows
    }


def reset_steps(connection: Connection, batch_id: int, steps: Sequence[str], run: int) -> None:
    query = f"""
        UPDATE {t.BATCH_STEP} SET status = 'WAITING', run = :run, round = 0, error = NULL,
            ended_at = NULL
        WHERE batch_id = :batch_id AND step = ANY(CAST(:steps AS text[]))"""
    connection.execute(text(query), {"batch_id": batch_id, "steps": list(steps), "run": run})


def change_step(
    connection: Connection,
    batch_id: int,
    step: str,
    status: StepStatus,
    *,
    error: str | None = None,
    rounds: int = 0,
    plan: dict[str, Any] | None = None,
    result: Any = None,
) -> None:
    """Set the status, add ``rounds``; plan and result stay unless one is given."""
    values = {
        "batch_id": batch_id,
        "step": step,
        "status": str(status),
        "error": error,
        "rounds": rounds,
        "plan": None if plan is None else json.dumps(plan),
        "result": None if result is None else json.dumps(result),
    }
    query = text(f"""
        UPDATE {t.BATCH_STEP} SET status = :status, error = :error,
            round = round + :rounds,
            plan = coalesce(CAST(:plan AS jsonb), plan),
            result = coalesce(CAST(:result AS jsonb), result),
            started_at = CASE WHEN :status = 'PLANNING' THEN statement_timestamp()
                ELSE started_at END,
            ended_at = CASE WHEN :status IN ('COMPLETED', 'FAILED', 'STOPPED')
                THEN statement_timestamp() END
        WHERE batch_id = :batch_id AND step = :step
    """)
    connection.execute(query, values)


ROWS = 2_000  # per statement: some ten milliseconds
_OVER = f"""b.status IN ('{BatchStatus.COMPLETED}', '{BatchStatus.ABANDONED}')
    AND NOT EXISTS (SELECT FROM {t.PENDING} t WHERE t.biz_key = 'batch:' || b.id)"""
_OLD = f"""
    b.ended_at < {t.NOW} - CAST(:shortest AS interval)
    AND {too_old("b.ended_at", "b.job")} AND {_OVER}"""


def find_expired(connection: Connection, keep: Keep, after: int, most: int) -> list[int]:
    if keep.shortest is None:
        return []
    query = f"SELECT b.id FROM {t.BATCH} b WHERE b.id > :after AND {_OLD} ORDER BY b.id LIMIT :most"
    values = {**ages(keep), "shortest": keep.shortest, "after": after, "most": most, "now": None}
    return list(connection.execute(text(query), values).scalars())


_HOLD_EXPIRED = text(
    f"SELECT b.id FROM {t.BATCH} b WHERE b.id = :id AND {_OVER} FOR UPDATE SKIP LOCKED"
)
_PARTITIONS = "p.batch_id = :id AND p.program_id LIKE '%#%'"
_PARTS = tuple(
    text(f"""
    WITH chosen AS MATERIALIZED (SELECT {where} LIMIT :most)
    DELETE FROM {table} d WHERE d.ctid = ANY(ARRAY(SELECT place FROM chosen))
    """)
    for table, where in (  # the largest first; the one that others refer to last
        (t.BATCH_SKIP, f"s.ctid AS place FROM {t.BATCH_SKIP} s WHERE s.batch_id = :id"),
        (
            t.PARTITION_VALUE,
            f"""v.ctid AS place FROM {t.PARTITION_VALUE} v
            JOIN {t.PARTITION} p USING (program_id, partition_no) WHERE {_PARTITIONS}""",
        ),
        (t.PARTITION, f"p.ctid AS place FROM {t.PARTITION} p WHERE {_PARTITIONS}"),
    )
)


def delete_instance_rows(connection: Connection, batch_id: int) -> bool | None:
    """Delete some rows of an instance, its own last; True: all are gone, False: more are left.

    None: it is locked or not over, or the database refuses.
    """

    def delete(_: Sequence[int]) -> bool | None:
        if connection.execute(_HOLD_EXPIRED, {"id": batch_id}).first() is None:
            return None
        for part in _PARTS:
            if connection.execute(part, {"id": batch_id, "most": ROWS}).rowcount:
                return False
        connection.execute(text(f"DELETE FROM {t.BATCH} b WHERE b.id = :id"), {"id": batch_id})
        return True

    return next(iter(row_by_row(connection, [batch_id], delete, "pruning of batches")), None)


def count_expired(connection: Connection, keep: Keep) -> tuple[int, int]:
    if keep.shortest is None:
        return 0, 0
    values = {**ages(keep), "shortest": keep.shortest, "now": None}
    query = text(f"""
        SELECT count(*) AS n, sum(pg_column_size(b)
            + (SELECT coalesce(sum(pg_column_size(p)), 0) FROM {t.PARTITION} p
                WHERE p.batch_id = b.id)
            + (SELECT coalesce(sum(pg_column_size(s)), 0) FROM {t.BATCH_SKIP} s
                WHERE s.batch_id = b.id)) AS b
        FROM {t.BATCH} b WHERE {_OLD}
    """)
    row = connection.execute(query, values).one()
    return row.n, row.b or 0
