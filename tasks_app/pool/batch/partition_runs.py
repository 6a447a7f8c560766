"""Which tasks run the partitions of a step, how they ended, and steps whose tasks are lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import ACTIVE, BatchStatus, PartResult, PartTally
from tasks_app.domain.partition.records import RowCounts, Status
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import (
    BATCH,
    BATCH_SKIP,
    BATCH_STEP,
    COMPLETED,
    ERROR,
    PARTITION,
    PARTITIONS,
    PENDING,
)

_OF_STEP = "p.batch_id = :batch_id AND p.step = :step"
_FIND = text(f"""
    SELECT p.id, p.partition_no FROM {PARTITION} p
    WHERE {_OF_STEP} AND p.status = ANY(CAST(:statuses AS text[])) ORDER BY p.partition_no
""")
_TASKS = text(f"""
    SELECT p.task_id FROM {PARTITION} p
    WHERE {_OF_STEP} AND p.status IN ('{Status.PLANNED}', '{Status.RUNNING}')
      AND p.task_id IS NOT NULL ORDER BY p.id FOR UPDATE
""")
_UNDER_WAY = text(f"""
    SELECT CAST(count(*) FILTER (
            WHERE p.status = '{Status.PLANNED}' OR t.state = '{State.PENDING}') AS integer),
        max(t.batch_id)
    FROM {PARTITION} p JOIN {PENDING} t ON t.id = p.task_id
    WHERE {_OF_STEP} AND p.status IN ('{Status.PLANNED}', '{Status.RUNNING}')
""")
_CLOSE = text(f"""
    WITH open AS MATERIALIZED (
        SELECT p.id, p.task_id FROM {PARTITION} p
        WHERE {_OF_STEP} AND p.status IN ('{Status.PLANNED}', '{Status.RUNNING}')
        ORDER BY p.id FOR UPDATE),
    ended AS MATERIALIZED (
        SELECT o.id, (SELECT e.error FROM {ERROR} e WHERE e.id = o.task_id) AS error FROM open o
        WHERE NOT EXISTS (SELECT FROM {PENDING} t WHERE t.id = o.task_id))
    UPDATE {PARTITION} p SET
        status = CASE WHEN e.error IS NULL THEN :left ELSE '{Status.FAILED}' END,
        error = e.error, changed_at = statement_timestamp(), ended_at = statement_timestamp()
    FROM ended e WHERE p.id = e.id
""")
_TALLY = text(f"""
    SELECT p.step, CAST(count(*) AS integer) AS total,
        CAST(count(*) FILTER (WHERE p.status = '{Status.COMPLETED}') AS integer) AS completed,
        CAST(count(*) FILTER (WHERE p.status = '{Status.FAILED}') AS integer) AS failed,
        CAST(count(*) FILTER (WHERE p.status = '{Status.RUNNING}') AS integer) AS running,
        CAST(count(*) FILTER (WHERE p.status = '{Status.COMPENSATED}') AS integer) AS compensated,
        CAST(sum(p.read_rows) AS bigint), CAST(sum(p.written_rows) AS bigint),
        CAST(sum(p.skipped_rows) AS bigint), CAST(sum(p.failed_rows) AS bigint)
    FROM {PARTITION} p WHERE p.batch_id = :batch_id GROUP BY p.step
""")
_RESULTS = text(f"""
    SELECT v.partition_no, v.low_key, v.high_key, v.status, v.checkpoint,
        v.read_rows, v.written_rows, v.skipped_rows, v.failed_rows
    FROM {PARTITIONS} v
    WHERE v.batch_id = :batch_id AND v.step = :step AND v.partition_no > :after
      AND (CAST(:status AS text) IS NULL OR v.status = :status)
    ORDER BY v.partition_no LIMIT :most
""")
_UNDO = text(f"""
    UPDATE {PARTITION} p SET status = '{Status.COMPENSATED}', checkpoint = NULL, read_rows = 0,
        written_rows = 0, skipped_rows = 0, failed_rows = 0,
        changed_at = statement_timestamp(), ended_at = statement_timestamp()
    WHERE p.id = :id AND p.status = '{Status.FAILED}' RETURNING p.batch_id, p.step, p.partition_no
""")
_UNSKIP = text(f"""
    DELETE FROM {BATCH_SKIP}
    WHERE batch_id = :batch_id AND step = :step AND partition_no = :partition_no
""")
PAGE = 500


def find(
    connection: Connection, batch_id: int, step: str, *statuses: Status
) -> list[tuple[int, int]]:
    """Return id and number of a step's partitions with one of these statuses, by number."""
    values = {"batch_id": batch_id, "step": step, "statuses": list(map(str, statuses))}
    return [(row.id, row.partition_no) for row in connection.execute(_FIND, values)]


def lock_tasks(connection: Connection, batch_id: int, step: str) -> list[int]:
    """Lock the partitions that are not over; return their tasks."""
    return list(connection.execute(_TASKS, {"batch_id": batch_id, "step": step}).scalars())


def under_way(connection: Connection, batch_id: int, step: str) -> tuple[int, int | None]:
    """Return how many partitions of a step wait for a worker, and the group of the step's tasks.

    None: no task is left.
    """
    waiting, group_id = connection.execute(_UNDER_WAY, {"batch_id": batch_id, "step": step}).one()
    return waiting, group_id


def close(
    connection: Connection,
    batch_id: int,
    step: str,
    left: Status = Status.STOPPED,
) -> None:
    """End the partitions whose tasks ended without writing it: FAILED by an error, or ``left``."""
    values = {"batch_id": batch_id, "step": step, "left": str(left)}
    connection.execute(_CLOSE, values)


def tallies(connection: Connection, batch_id: int) -> dict[str, PartTally]:
    """Return the tallies by step; a step without partitions is not in it."""
    rows = connection.execute(_TALLY, {"batch_id": batch_id})
    found: dict[str, PartTally] = {}
    for step, total, completed, failed, running, compensated, *counts in rows:
        found[step] = PartTally(total, completed, failed, running, compensated, RowCounts(*counts))
    return found


def results(
    connection: Connection, batch_id: int, step: str, status: Status | None = None
) -> Iterator[PartResult]:
    """Yield what partitions leave, by number, read some hundred at a time; None: of any status."""
    after = -1
    while True:
        values = {"batch_id": batch_id, "step": step, "after": after, "most": PAGE}
        rows = connection.execute(_RESULTS, {**values, "status": status and str(status)}).all()
        for row in rows:
            state = (row.checkpoint or {}).get("state") or {}
            of: Any = (*row[:3], Status(row.status), state, RowCounts(*row[5:]))
            yield PartResult(*of)
        if len(rows) < PAGE:
            return
        after = rows[-1].partition_no


def undo(connection: Connection, partition_id: int) -> bool:
    """Reset a failed partition that was compensated, as if it had never started."""
    row = connection.execute(_UNDO, {"id": partition_id}).first()
    if row is not None:
        connection.execute(_UNSKIP, row._asdict())
    return row is not None


_ACTIVE_STATUSES = ", ".join(f"'{status}'" for status in sorted(ACTIVE))
_ACTIVE = f"s.batch_id = b.id AND s.status IN ({_ACTIVE_STATUSES})"
_LOST = f"""{_ACTIVE} AND NOT EXISTS (
    SELECT FROM {PENDING} p WHERE p.biz_key = 'batch:' || b.id
      AND starts_with(p.name || ':', b.job || ':' || s.step || ':'))"""
_BATCHES_WITH_LOST_STEPS = text(f"""
    SELECT b.id FROM {BATCH} b WHERE b.ended_at IS NULL
      AND (EXISTS (SELECT FROM {BATCH_STEP} s WHERE {_LOST})
        OR NOT EXISTS (SELECT FROM {BATCH_STEP} s WHERE {_ACTIVE}))
    ORDER BY b.id LIMIT :most
""")
_LOCK_ACTIVE_BATCH = text(f"""
    SELECT status FROM {BATCH} WHERE id = :batch_id AND ended_at IS NULL FOR UPDATE SKIP LOCKED
""")
_LOST_STEPS = text(f"""
    SELECT s.step FROM {BATCH} b, {BATCH_STEP} s WHERE b.id = :batch_id AND {_LOST} ORDER BY s.step
""")
_OF = """
    t.biz_key = 'batch:' || b.id AND t.finished_at >= b.started_at
      AND t.name = ANY(ARRAY(SELECT concat_ws(':', b.job, CAST(:step AS text), w)
                             FROM unnest(ARRAY['plan', 'join', 'reduce']) AS w))
      AND t.payload ->> 'run' = CAST(b.run AS text)"""
_LOST_CAUSE = text(f"""
    SELECT f.name, f.state, f.error FROM {BATCH} b, LATERAL (
        SELECT t.name, t.state, t.error, t.finished_at FROM {ERROR} t WHERE {_OF}
        UNION ALL
        SELECT t.name, t.state, t.error, t.finished_at FROM {COMPLETED} t
        WHERE {_OF} AND t.state <> '{State.SUCCEEDED}') AS f
    WHERE b.id = :batch_id ORDER BY f.finished_at DESC LIMIT 1
""")


class LostCause(NamedTuple):
    """The last plan, join or reduce of this run that did not succeed."""

    name: str
    state: State
    error: str | None

    def __str__(self) -> str:
        word = self.name.rpartition(":")[2]
        return f"Its {word} ended {self.state}" + (f": {self.error}" if self.error else "")


def find_batches_with_lost_steps(connection: Connection, most: int) -> list[int]:
    """Return instances that seem to have lost steps; check again under their lock."""
    return list(connection.execute(_BATCHES_WITH_LOST_STEPS, {"most": most}).scalars())


def lock_active_batch(connection: Connection, batch_id: int) -> BatchStatus | None:
    """Lock an instance that has not ended; None: it has, or somebody else has locked it."""
    status = connection.execute(_LOCK_ACTIVE_BATCH, {"batch_id": batch_id}).scalar()
    return None if status is None else BatchStatus(status)


def find_lost_steps(connection: Connection, batch_id: int) -> list[str]:
    """Return the lost steps of an instance that the caller has locked."""
    return list(connection.execute(_LOST_STEPS, {"batch_id": batch_id}).scalars())


def find_lost_cause(connection: Connection, batch_id: int, step: str) -> LostCause | None:
    """Return why a step does not go on; None: the pools do not know."""
    row = connection.execute(_LOST_CAUSE, {"batch_id": batch_id, "step": step}).first()
    return None if row is None else LostCause(row.name, State(row.state), row.error)
