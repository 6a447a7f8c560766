"""Progress: a run says how far its partition is.

Each write carries the fence of its task, and stands in one transaction with the rows that it
tells of. Whoever commits looks at the fence last of all; this keeps a run that lost it
from working on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, CursorResult, text

from tasks_app.domain.batch.records import BatchStatus, StepStatus
from tasks_app.domain.partition.records import Counts, Status
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import BATCH, BATCH_STEP, NOW, PARTITION, PENDING

LONGEST_ERROR = 2000


class Word(StrEnum):
    """What a run learns of its instance whenever it writes."""

    GO_ON = "go on"
    STOP = "stop"
    """A restart goes on from here."""
    CALLED_OFF = "called off"
    """The step is done without it."""


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
        started_at = coalesce(t.started_at, {NOW}), changed_at = {NOW}, ended_at = NULL,
        error = NULL
    WHERE t.id = :id AND (t.batch_id IS NULL OR t.task_id = :task_id) AND {_FENCED}
      AND (t.status IN ('{Status.PLANNED}', '{Status.RUNNING}')
        OR t.status IN ('{Status.STOPPED}', '{Status.FAILED}') AND {_WORD} = '{Word.GO_ON}')
    RETURNING {_WORD}
""")
_TELL = f"""
    UPDATE {PARTITION} t SET checkpoint = CAST(:checkpoint AS jsonb), changed_at = {NOW},
        read_rows = t.read_rows + :read, written_rows = t.written_rows + :written,
        skipped_rows = t.skipped_rows + :skipped, failed_rows = t.failed_rows + :failed
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
    UPDATE {PARTITION} t SET status = :status, changed_at = {NOW}, error = CAST(:error AS text),
        ended_at = CASE WHEN :status = '{Status.STOPPED}' THEN NULL ELSE {NOW} END
    WHERE {_OURS}
""")
_MARK = text(f"""
    WITH chosen AS MATERIALIZED (
        SELECT t.id FROM {PARTITION} t
        WHERE t.id = ANY(CAST(:ids AS bigint[])) AND t.status = ANY(CAST(:those AS text[]))
        ORDER BY t.id FOR NO KEY UPDATE)
    UPDATE {PARTITION} t SET status = :status, changed_at = {NOW},
        error = coalesce(CAST(:error AS text), t.error)
    FROM chosen c WHERE t.id = c.id RETURNING t.id
""")


def start(
    connection: Connection, partition_id: int, fence: Fence, *, now: datetime | None = None
) -> Word | None:
    """Let the run have the partition; its checkpoint and counts stay as the last run left them.

    None: it lost its fence, another task has the partition, or that is done with. So is one that
    was stopped or has failed, when its step has ended: only a restart goes on with it.
    """
    word = _write(connection, _START, partition_id, fence, {"now": now}).scalar()
    return None if word is None else Word(word)


def progress(
    connection: Connection,
    partition_id: int,
    fence: Fence,
    counts: Counts,
    checkpoint: Any,
    *,
    last: bool = False,
    now: datetime | None = None,
) -> Word | None:
    """Add what became of a chunk's rows, and set the checkpoint; None: it is not the run's own.

    Then roll back: another run has the partition, or will have it. Else commit at once: the row of
    the task is locked, behind that of the partition, as by whoever cancels. Who was cancelled is
    told to stop.

    ``last``: what follows settles the task in the same transaction. That looks at the fence, and
    locks the task's group before its row; so the row is not locked here.
    """
    values = {**counts._asdict(), "checkpoint": json.dumps(checkpoint), "now": now}
    statement = _LAST if last else _PROGRESS
    word = _write(connection, statement, partition_id, fence, values).scalar()
    return None if word is None else Word(word)


def end(
    connection: Connection,
    partition_id: int,
    fence: Fence,
    status: Status,
    error: str | None = None,
    *,
    now: datetime | None = None,
) -> bool:
    """Say how the run ended; STOPPED goes on later. False: it is not the run's own."""
    values = {"status": str(status), "error": error and error[:LONGEST_ERROR], "now": now}
    return _write(connection, _END, partition_id, fence, values).rowcount == 1


def mark(
    connection: Connection,
    partition_ids: Iterable[int],
    status: Status,
    *,
    those: Iterable[Status],
    error: str | None = None,
    now: datetime | None = None,
) -> list[int]:
    """Set the status of partitions that no run has, where it is one of ``those``; return whose."""
    values = {
        "ids": sorted(partition_ids),
        "status": str(status),
        "those": [str(each) for each in those],
        "error": error and error[:LONGEST_ERROR],
        "now": now,
    }
    return sorted(connection.execute(_MARK, values).scalars())


def _write(
    connection: Connection, statement: Any, partition_id: int, fence: Fence, values: dict[str, Any]
) -> CursorResult[Any]:
    task_id, attempt, token = fence
    of_run = {"id": partition_id, "task_id": task_id, "attempt": attempt, "token": token}
    return connection.execute(statement, {**values, **of_run})
