"""What the run of a partition writes: its progress, its end, and the rows that it skipped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, CursorResult, text

from tasks_app.domain.batch.records import BatchStatus, Skipped, StepStatus
from tasks_app.domain.partition.records import RowCounts, Status
from tasks_app.domain.tasks.error_text import storable_text
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import BATCH, BATCH_SKIP, BATCH_STEP, PARTITION, PENDING

LONGEST_ERROR = 2000


class RunSignal(StrEnum):
    CONTINUE = "continue"
    STOP = "stop"  # a restart continues from here
    ABANDON = "abandon"  # the step ended without this partition


_SIGNAL = f"""CASE
    WHEN t.batch_id IS NULL THEN '{RunSignal.CONTINUE}'
    ELSE coalesce((
        SELECT CASE
            WHEN s.status IN ('{StepStatus.COMPLETED}', '{StepStatus.REDUCING}')
                THEN '{RunSignal.ABANDON}'
            WHEN s.status = '{StepStatus.RUNNING}' AND b.status = '{BatchStatus.RUNNING}'
                THEN '{RunSignal.CONTINUE}' END
        FROM {BATCH_STEP} s, {BATCH} b
        WHERE s.batch_id = t.batch_id AND s.step = t.step AND b.id = t.batch_id),
        '{RunSignal.STOP}') END"""
_FENCED = f"""EXISTS (
    SELECT FROM {PENDING} p WHERE p.id = :task_id AND p.attempt = :attempt
      AND p.lease_token = :token AND p.state = '{State.RUNNING}')"""
_START = text(f"""
    UPDATE {PARTITION} t SET status = '{Status.RUNNING}', task_id = :task_id,
        started_at = coalesce(t.started_at, statement_timestamp()),
        changed_at = statement_timestamp(), ended_at = NULL, error = NULL
    WHERE t.id = :id AND (t.batch_id IS NULL OR t.task_id = :task_id) AND {_FENCED}
      AND (t.status IN ('{Status.PLANNED}', '{Status.RUNNING}')
        OR t.status IN ('{Status.STOPPED}', '{Status.FAILED}')
          AND {_SIGNAL} = '{RunSignal.CONTINUE}')
    RETURNING {_SIGNAL}
""")
_ADVANCE = f"""
    UPDATE {PARTITION} t SET checkpoint = CAST(:checkpoint AS jsonb),
        changed_at = statement_timestamp(), read_rows = t.read_rows + :read,
        written_rows = t.written_rows + :written, skipped_rows = t.skipped_rows + :skipped,
        failed_rows = t.failed_rows + :failed
    WHERE t.id = :id AND t.task_id = :task_id AND t.status = '{Status.RUNNING}'"""
_LAST = text(f"{_ADVANCE} RETURNING {_SIGNAL}")
_PROGRESS = text(f"""
    WITH advanced AS ({_ADVANCE} RETURNING t.batch_id, t.step)
    SELECT CASE WHEN p.cancel_requested_at IS NULL THEN {_SIGNAL} ELSE '{RunSignal.STOP}' END
    FROM advanced t, {PENDING} p
    WHERE p.id = :task_id AND p.attempt = :attempt AND p.lease_token = :token
      AND p.state = '{State.RUNNING}'
    FOR NO KEY UPDATE OF p
""")
_END = text(f"""
    UPDATE {PARTITION} t SET status = :status, error = CAST(:error AS text),
        changed_at = statement_timestamp(),
        ended_at = CASE WHEN :status <> '{Status.STOPPED}' THEN statement_timestamp() END
    WHERE t.id = :id AND t.task_id = :task_id AND t.status = '{Status.RUNNING}' AND {_FENCED}
""")


def start(connection: Connection, partition_id: int, fence: Fence) -> RunSignal | None:
    """Give the run the partition; checkpoint and counts stay as the last run left them.

    None: the run lost its fence, another task has the partition, or the partition is over. One that
    was stopped or has failed is over when its step has ended: only a restart continues it.
    """
    signal = _write(connection, _START, partition_id, fence, {}).scalar()
    return None if signal is None else RunSignal(signal)


def progress(
    connection: Connection,
    partition_id: int,
    fence: Fence,
    counts: RowCounts,
    checkpoint: Any,
    *,
    last: bool = False,
) -> RunSignal | None:
    """Add a chunk's counts, and set the checkpoint. STOP also if the task was cancelled.

    None: another run has the partition, or will have it: roll back. Otherwise commit at once: the
    rows of the partition and of the task are locked, in this order, as a cancel locks them.
    ``last``: the task is settled next, in the same transaction. The settle checks the fence, and
    locks the task's group before its row; so the row is not locked here.
    """
    values = {**counts._asdict(), "checkpoint": json.dumps(checkpoint)}
    statement = _LAST if last else _PROGRESS
    signal = _write(connection, statement, partition_id, fence, values).scalar()
    return None if signal is None else RunSignal(signal)


def finish(
    connection: Connection,
    partition_id: int,
    fence: Fence,
    status: Status,
    error: str | None = None,
) -> bool:
    """Set how the run ended. False: the run has lost the partition."""
    values = {"status": str(status), "error": error and error[:LONGEST_ERROR]}
    return _write(connection, _END, partition_id, fence, values).rowcount == 1


def set_status(
    connection: Connection,
    partition_ids: Iterable[int],
    status: Status,
    *,
    those: Iterable[Status],
    error: str | None = None,
) -> list[int]:
    """Set the status of partitions that no run has, where it is one of ``those``; return ids."""
    values = {
        "ids": sorted(partition_ids),
        "status": str(status),
        "those": [str(each) for each in those],
        "error": error and error[:LONGEST_ERROR],
    }
    found = connection.execute(
        text(f"""
            WITH chosen AS MATERIALIZED (
                SELECT t.id FROM {PARTITION} t
                WHERE t.id = ANY(CAST(:ids AS bigint[])) AND t.status = ANY(CAST(:those AS text[]))
                ORDER BY t.id FOR NO KEY UPDATE)
            UPDATE {PARTITION} t SET status = :status, changed_at = statement_timestamp(),
                error = coalesce(CAST(:error AS text), t.error)
            FROM chosen c WHERE t.id = c.id RETURNING t.id
        """),
        values,
    )
    return sorted(found.scalars())


def _write(
    connection: Connection, statement: Any, partition_id: int, fence: Fence, values: dict[str, Any]
) -> CursorResult[Any]:
    task_id, attempt, token = fence
    of_run = {"id": partition_id, "task_id": task_id, "attempt": attempt, "token": token}
    return connection.execute(statement, {**values, **of_run})


def check_deferred(connection: Connection) -> None:
    """Check now what was deferred to the COMMIT, and defer nothing more in this transaction."""
    connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))


def try_deferred(connection: Connection) -> None:
    """Do ``check_deferred``, and roll it back: everything is deferred again."""
    savepoint = connection.begin_nested()
    try:
        check_deferred(connection)
    finally:
        savepoint.rollback()


LONGEST_KEY = 255
LONGEST_REASON = 1_000


def add_skips(
    connection: Connection,
    batch_id: int,
    step: str,
    partition_no: int,
    rows: Sequence[tuple[str, str]],
) -> None:
    values = {
        "batch_id": batch_id,
        "step": step,
        "partition_no": partition_no,
        "keys": [storable_text(key, LONGEST_KEY) for key, _ in rows],
        "reasons": [storable_text(reason, LONGEST_REASON) for _, reason in rows],
    }
    query = text(f"""
        INSERT INTO {BATCH_SKIP} (batch_id, step, partition_no, key, reason)
        SELECT :batch_id, :step, :partition_no, s.key, s.reason
        FROM unnest(CAST(:keys AS text[]), CAST(:reasons AS text[])) AS s(key, reason)
    """)
    connection.execute(query, values)


def count_skips(connection: Connection, batch_id: int, step: str) -> int:
    query = f"SELECT count(*) FROM {BATCH_SKIP} WHERE batch_id = :batch_id AND step = :step"
    return int(connection.execute(text(query), {"batch_id": batch_id, "step": step}).scalar_one())


def count_skips_exclusively(connection: Connection, batch_id: int, step: str) -> int:
    """Return the count, and keep others from committing any until this transaction ends."""
    # The lock also makes decisions about the instance wait: call this only when rows are skipped.
    lock = f"SELECT FROM {BATCH_STEP} WHERE batch_id = :batch_id AND step = :step FOR NO KEY UPDATE"
    connection.execute(text(lock), {"batch_id": batch_id, "step": step})
    return count_skips(connection, batch_id, step)


def find_skips(
    connection: Connection, batch_id: int, *, step: str | None = None, most: int = 100
) -> list[Skipped]:
    query = f"""
        SELECT step, partition_no, key, reason, at FROM {BATCH_SKIP}
        WHERE batch_id = :batch_id AND (CAST(:step AS text) IS NULL OR step = :step)
        ORDER BY id LIMIT :most"""
    values = {"batch_id": batch_id, "step": step, "most": most}
    return [Skipped(*row) for row in connection.execute(text(query), values)]
