"""What the run of a partition writes: its progress, its end, and the rows that it skipped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, CursorResult, text

from tasks_app.domain.batch.records import BatchStatus, Skipped, StepStatus
from tasks_app.domain.partition.records import RowCounts, Status
from tasks_app.domain.tasks.error_text import clean
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import BATCH, BATCH_SKIP, BATCH_STEP, PARTITION, PENDING

LONGEST_ERROR = 2000
_IMMEDIATE = text("SET CONSTRAINTS ALL IMMEDIATE")


class Word(StrEnum):
    """What a run learns about its instance from each write."""

    GO_ON = "go on"
    STOP = "stop"  # a restart goes on from here
    CALLED_OFF = "called off"  # the step is done without it


_WORD = f"""CASE
    WHEN t.batch_id IS NULL THEN '{Word.GO_ON}'
    ELSE coalesce((
        SELECT CASE
            WHEN s.status IN ('{StepStatus.COMPLETED}', '{StepStatus.REDUCING}')
                THEN '{Word.CALLED_OFF}'
            WHEN s.status = '{StepStatus.RUNNING}' AND b.status = '{BatchStatus.RUNNING}'
                THEN '{Word.GO_ON}' END
        FROM {BATCH_STEP} s, {BATCH} b
        WHERE s.batch_id = t.batch_id AND s.step = t.step AND b.id = t.batch_id),
        '{Word.STOP}') END"""
_FENCED = f"""EXISTS (
    SELECT FROM {PENDING} p WHERE p.id = :task_id AND p.attempt = :attempt
      AND p.lease_token = :token AND p.state = '{State.RUNNING}')"""
_OURS = f"t.id = :id AND t.task_id = :task_id AND t.status = '{Status.RUNNING}' AND {_FENCED}"
_START = text(f"""
    UPDATE {PARTITION} t SET status = '{Status.RUNNING}', task_id = :task_id,
        started_at = coalesce(t.started_at, statement_timestamp()),
        changed_at = statement_timestamp(), ended_at = NULL, error = NULL
    WHERE t.id = :id AND (t.batch_id IS NULL OR t.task_id = :task_id) AND {_FENCED}
      AND (t.status IN ('{Status.PLANNED}', '{Status.RUNNING}')
        OR t.status IN ('{Status.STOPPED}', '{Status.FAILED}') AND {_WORD} = '{Word.GO_ON}')
    RETURNING {_WORD}
""")
_TELL = f"""
    UPDATE {PARTITION} t SET checkpoint = CAST(:checkpoint AS jsonb),
        changed_at = statement_timestamp(), read_rows = t.read_rows + :read,
        written_rows = t.written_rows + :written, skipped_rows = t.skipped_rows + :skipped,
        failed_rows = t.failed_rows + :failed
    WHERE t.id = :id AND t.task_id = :task_id AND t.status = '{Status.RUNNING}'"""
_LAST = text(f"{_TELL} RETURNING {_WORD}")
_PROGRESS = text(f"""
    WITH told AS ({_TELL} RETURNING t.batch_id, t.step)
    SELECT CASE WHEN p.cancel_requested_at IS NULL THEN {_WORD} ELSE '{Word.STOP}' END
    FROM told t, {PENDING} p
    WHERE p.id = :task_id AND p.attempt = :attempt AND p.lease_token = :token
      AND p.state = '{State.RUNNING}'
    FOR NO KEY UPDATE OF p
""")
_END = text(f"""
    UPDATE {PARTITION} t SET status = :status, error = CAST(:error AS text),
        changed_at = statement_timestamp(),
        ended_at = CASE WHEN :status <> '{Status.STOPPED}' THEN statement_timestamp() END
    WHERE {_OURS}
""")
_MARK = text(f"""
    WITH chosen AS MATERIALIZED (
        SELECT t.id FROM {PARTITION} t
        WHERE t.id = ANY(CAST(:ids AS bigint[])) AND t.status = ANY(CAST(:those AS text[]))
        ORDER BY t.id FOR NO KEY UPDATE)
    UPDATE {PARTITION} t SET status = :status, changed_at = statement_timestamp(),
        error = coalesce(CAST(:error AS text), t.error)
    FROM chosen c WHERE t.id = c.id RETURNING t.id
""")


def start(connection: Connection, partition_id: int, fence: Fence) -> Word | None:
    """Give the run the partition; checkpoint and counts stay as the last run left them.

    None: the run lost its fence, another task has the partition, or the partition is over. One that
    was stopped or has failed is over when its step has ended: only a restart goes on with it.
    """
    word = _write(connection, _START, partition_id, fence, {}).scalar()
    return None if word is None else Word(word)


def progress(
    connection: Connection,
    partition_id: int,
    fence: Fence,
    counts: RowCounts,
    checkpoint: Any,
    *,
    last: bool = False,
) -> Word | None:
    """Add a chunk's counts, and set the checkpoint; None: the partition is not the run's own.

    After None roll back: another run has the partition, or will have it. Else commit at once: the
    rows of the partition and of the task are locked, in this order, as a cancel locks them. A run
    whose task was cancelled is told to stop.

    ``last``: the task is settled next, in the same transaction. The settle checks the fence, and
    locks the task's group before its row; so the row is not locked here.
    """
    values = {**counts._asdict(), "checkpoint": json.dumps(checkpoint)}
    statement = _LAST if last else _PROGRESS
    word = _write(connection, statement, partition_id, fence, values).scalar()
    return None if word is None else Word(word)


def end(
    connection: Connection,
    partition_id: int,
    fence: Fence,
    status: Status,
    error: str | None = None,
) -> bool:
    """Set how the run ended; STOPPED goes on later. False: the partition is not the run's own."""
    values = {"status": str(status), "error": error and error[:LONGEST_ERROR]}
    return _write(connection, _END, partition_id, fence, values).rowcount == 1


def mark(
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
    return sorted(connection.execute(_MARK, values).scalars())


def _write(
    connection: Connection, statement: Any, partition_id: int, fence: Fence, values: dict[str, Any]
) -> CursorResult[Any]:
    task_id, attempt, token = fence
    of_run = {"id": partition_id, "task_id": task_id, "attempt": attempt, "token": token}
    return connection.execute(statement, {**values, **of_run})


def check_deferred(connection: Connection) -> None:
    """Check now what was deferred to the COMMIT, while a refused chunk can still be tried again.

    Nothing is deferred for the rest of the transaction.
    """
    connection.execute(_IMMEDIATE)


def try_deferred(connection: Connection) -> None:
    """Do as ``check_deferred``, and roll that back: everything is deferred again."""
    savepoint = connection.begin_nested()
    try:
        check_deferred(connection)
    finally:
        savepoint.rollback()


LONGEST_KEY = 255
LONGEST_REASON = 1_000
_ADD_SKIPS = text(f"""
    INSERT INTO {BATCH_SKIP} (batch_id, step, partition_no, key, reason)
    SELECT :batch_id, :step, :partition_no, s.key, s.reason
    FROM unnest(CAST(:keys AS text[]), CAST(:reasons AS text[])) AS s(key, reason)
""")
_ALONE = text(f"""
    SELECT FROM {BATCH_STEP} WHERE batch_id = :batch_id AND step = :step FOR NO KEY UPDATE
""")
_COUNT_SKIPS = text(
    f"SELECT count(*) FROM {BATCH_SKIP} WHERE batch_id = :batch_id AND step = :step"
)
_FIND_SKIPS = text(f"""
    SELECT step, partition_no, key, reason, at FROM {BATCH_SKIP}
    WHERE batch_id = :batch_id AND (CAST(:step AS text) IS NULL OR step = :step)
    ORDER BY id LIMIT :most
""")


def add_skips(
    connection: Connection,
    batch_id: int,
    step: str,
    partition_no: int,
    rows: Sequence[tuple[str, str]],
) -> None:
    """Write keys with their reasons."""
    values = {
        "batch_id": batch_id,
        "step": step,
        "partition_no": partition_no,
        "keys": [clean(key, LONGEST_KEY) for key, _ in rows],
        "reasons": [clean(reason, LONGEST_REASON) for _, reason in rows],
    }
    connection.execute(_ADD_SKIPS, values)


def count_skips(connection: Connection, batch_id: int, step: str) -> int:
    """Return how many rows of a step were left out, as far as this transaction sees."""
    return int(connection.execute(_COUNT_SKIPS, {"batch_id": batch_id, "step": step}).scalar_one())


def count_skips_exclusively(connection: Connection, batch_id: int, step: str) -> int:
    """Return the count, and keep others from committing any until this transaction ends.

    The lock on the step also keeps away those who decide about the instance. So ask only in a
    chunk that leaves rows out.
    """
    connection.execute(_ALONE, {"batch_id": batch_id, "step": step})
    return count_skips(connection, batch_id, step)


def find_skips(
    connection: Connection, batch_id: int, *, step: str | None = None, most: int = 100
) -> list[Skipped]:
    """Return what was left out, in the order of the inserts."""
    rows = connection.execute(_FIND_SKIPS, {"batch_id": batch_id, "step": step, "most": most})
    return [Skipped(*row) for row in rows]
