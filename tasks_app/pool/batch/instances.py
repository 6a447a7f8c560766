"""Instances of batch jobs and their steps: added, locked, changed, deleted when old."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from tasks_app.domain.batch.records import Batch, BatchStatus, BatchStep, StepStatus
from tasks_app.domain.config.retention import Keep
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.retention import ages, too_old
from tasks_app.pool.tables import (
    BATCH,
    BATCH_SKIP,
    BATCH_STEP,
    NOW,
    PARTITION,
    PARTITION_VALUE,
    PENDING,
)

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


_STEP_COLUMNS = "batch_id, step, status, run, round, plan, result, started_at, ended_at, error"
_ADD_STEPS = text(f"""
    INSERT INTO {BATCH_STEP} (batch_id, step, run)
    SELECT :batch_id, s.step, :run
    FROM unnest(CAST(:steps AS text[])) WITH ORDINALITY AS s(step, place) ORDER BY s.place
    ON CONFLICT DO NOTHING
""")
_FIND_STEPS = text(f"""
    SELECT {_STEP_COLUMNS} FROM {BATCH_STEP} WHERE batch_id = :batch_id ORDER BY started_at, step
""")
_RESET_STEPS = text(f"""
    UPDATE {BATCH_STEP} SET status = 'WAITING', run = :run, round = 0, error = NULL, ended_at = NULL
    WHERE batch_id = :batch_id AND step = ANY(CAST(:steps AS text[]))
""")
_CHANGE_STEP = text(f"""
    UPDATE {BATCH_STEP} SET status = :status, error = :error,
        round = round + :rounds,
        plan = coalesce(CAST(:plan AS jsonb), plan),
        result = coalesce(CAST(:result AS jsonb), result),
        started_at = CASE WHEN :status = 'PLANNING' THEN statement_timestamp() ELSE started_at END,
        ended_at = CASE WHEN :status IN ('COMPLETED', 'FAILED', 'STOPPED')
            THEN statement_timestamp() END
    WHERE batch_id = :batch_id AND step = :step
""")


def add_steps(connection: Connection, batch_id: int, steps: Sequence[str], run: int) -> None:
    """Insert those that are not there."""
    connection.execute(_ADD_STEPS, {"batch_id": batch_id, "steps": list(steps), "run": run})


def find_steps(connection: Connection, batch_id: int) -> dict[str, BatchStep]:
    """Return all steps of an instance by name, as they began; those that have not come last."""
    rows = connection.execute(_FIND_STEPS, {"batch_id": batch_id})
    return {
        row.step: BatchStep(row.batch_id, row.step, StepStatus(row.status), *row[3:])
        for row in rows
    }


def reset_steps(connection: Connection, batch_id: int, steps: Sequence[str], run: int) -> None:
    connection.execute(_RESET_STEPS, {"batch_id": batch_id, "steps": list(steps), "run": run})


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
    """Set the status; plan and result stay where none is given, ``rounds`` are added."""
    values = {
        "batch_id": batch_id,
        "step": step,
        "status": str(status),
        "error": error,
        "rounds": rounds,
        "plan": None if plan is None else json.dumps(plan),
        "result": None if result is None else json.dumps(result),
    }
    connection.execute(_CHANGE_STEP, values)


ROWS = 2_000  # per statement: some ten milliseconds
_OVER = f"""b.status IN ('{BatchStatus.COMPLETED}', '{BatchStatus.ABANDONED}')
    AND NOT EXISTS (SELECT FROM {PENDING} t WHERE t.biz_key = 'batch:' || b.id)"""
_OLD = f"""
    b.ended_at < {NOW} - CAST(:shortest AS interval)
    AND {too_old("b.ended_at", "b.job")} AND {_OVER}"""
_FIND_EXPIRED = text(f"""
    SELECT b.id FROM {BATCH} b WHERE b.id > :after AND {_OLD} ORDER BY b.id LIMIT :most
""")
_HOLD_EXPIRED = text(
    f"SELECT b.id FROM {BATCH} b WHERE b.id = :id AND {_OVER} FOR UPDATE SKIP LOCKED"
)
_ITS_PARTITIONS = f"{PARTITION} p WHERE p.batch_id = :id AND p.program_id LIKE '%#%'"
_PARTS = tuple(
    text(f"""
    WITH chosen AS MATERIALIZED (SELECT {where} LIMIT :most)
    DELETE FROM {table} d WHERE d.ctid = ANY(ARRAY(SELECT place FROM chosen))
    """)
    for table, where in (
        (BATCH_SKIP, f"s.ctid AS place FROM {BATCH_SKIP} s WHERE s.batch_id = :id"),
        (
            PARTITION_VALUE,
            f"""v.ctid AS place FROM {PARTITION_VALUE} v
            JOIN {PARTITION} p USING (program_id, partition_no)
            WHERE p.batch_id = :id AND p.program_id LIKE '%#%'""",
        ),
        (PARTITION, f"p.ctid AS place FROM {_ITS_PARTITIONS}"),
    )
)
"""The largest first; the one that others refer to last."""
_DELETE_INSTANCE = text(f"DELETE FROM {BATCH} b WHERE b.id = :id")
_COUNT_EXPIRED = text(f"""
    SELECT count(*) AS n, sum(pg_column_size(b)
        + (SELECT coalesce(sum(pg_column_size(p)), 0) FROM {PARTITION} p WHERE p.batch_id = b.id)
        + (SELECT coalesce(sum(pg_column_size(s)), 0) FROM {BATCH_SKIP} s WHERE s.batch_id = b.id)
        ) AS b
    FROM {BATCH} b WHERE {_OLD}
""")


def find_expired(
    connection: Connection, keep: Keep, after: int, most: int, *, now: datetime | None = None
) -> list[int]:
    """Return ids above ``after`` that are old enough, lowest first."""
    if keep.shortest is None:
        return []
    values = {**ages(keep), "shortest": keep.shortest, "after": after, "most": most, "now": now}
    return list(connection.execute(_FIND_EXPIRED, values).scalars())


def delete_instance_rows(connection: Connection, batch_id: int) -> bool | None:
    """Delete some rows of an instance, its own last; True: all are gone, False: more are left.

    None: it is locked, or not over any more, or the database refuses that.
    """

    def delete(_: Sequence[int]) -> bool | None:
        if connection.execute(_HOLD_EXPIRED, {"id": batch_id}).first() is None:
            return None
        for part in _PARTS:
            if connection.execute(part, {"id": batch_id, "most": ROWS}).rowcount:
                return False
        connection.execute(_DELETE_INSTANCE, {"id": batch_id})
        return True

    return next(iter(row_by_row(connection, [batch_id], delete, "pruning of batches")), None)


def count_expired(
    connection: Connection, keep: Keep, *, now: datetime | None = None
) -> tuple[int, int]:
    """Return how many instances are old enough, and the bytes of all their rows."""
    if keep.shortest is None:
        return 0, 0
    row = connection.execute(
        _COUNT_EXPIRED, {**ages(keep), "shortest": keep.shortest, "now": now}
    ).one()
    return row.n, row.b or 0
