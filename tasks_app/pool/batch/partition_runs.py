"""Which tasks run the partitions of a step, how they ended, and steps whose tasks are lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import ACTIVE, PartResult, PartTally
from tasks_app.domain.partition.records import RowCounts, Status
from tasks_app.domain.tasks.states import State
from tasks_app.pool import tables as t

_OF_STEP = "p.batch_id = :batch_id AND p.step = :step"
_UNFINISHED = f"{_OF_STEP} AND p.status IN ('{Status.PLANNED}', '{Status.RUNNING}')"


def find(
    connection: Connection, batch_id: int, step: str, *statuses: Status
) -> list[tuple[int, int]]:
    query = text(f"""
        SELECT p.id, p.partition_no FROM {t.PARTITION} p
        WHERE {_OF_STEP} AND p.status = ANY(CAST(:statuses AS text[])) ORDER BY p.partition_no
    """)
    values = {"batch_id": batch_id, "step": step, "statuses": list(map(str, statuses))}
    return [(row.id, row.partition_no) for row in connection.execute(query, values)]


def lock_tasks(connection: Connection, batch_id: int, step: str) -> list[int]:
    query = text(f"""
        SELECT p.task_id FROM {t.PARTITION} p
        WHERE {_UNFINISHED} AND p.task_id IS NOT NULL ORDER BY p.id FOR UPDATE
    """)
    return list(connection.execute(query, {"batch_id": batch_id, "step": step}).scalars())


def count_waiting(connection: Connection, batch_id: int, step: str) -> tuple[int, int | None]:
    """Return how many partitions wait for a worker, and the tasks' group; None: no task is left."""
    query = text(f"""
        SELECT CAST(count(*) FILTER (
                WHERE p.status = '{Status.PLANNED}' OR t.state = '{State.PENDING}') AS integer),
            max(t.batch_id)
        FROM {t.PARTITION} p JOIN {t.PENDING} t ON t.id = p.task_id
        WHERE {_UNFINISHED}
    """)
    waiting, group_id = connection.execute(query, {"batch_id": batch_id, "step": step}).one()
    return waiting, group_id


def end_partitions(
    connection: Connection, batch_id: int, step: str, left: Status = Status.STOPPED
) -> None:
    """End the partitions whose tasks ended without writing it: FAILED by an error, or ``left``."""
    query = text(f"""
        WITH open AS MATERIALIZED (
            SELECT p.id, p.task_id FROM {t.PARTITION} p WHERE {_UNFINISHED}
            ORDER BY p.id FOR UPDATE),
        ended AS MATERIALIZED (
            SELECT o.id, (SELECT e.error FROM {t.ERROR} e WHERE e.id = o.task_id) AS error
            FROM open o WHERE NOT EXISTS (SELECT FROM {t.PENDING} t WHERE t.id = o.task_id))
        UPDATE {t.PARTITION} p SET
            status = CASE WHEN e.error IS NULL THEN :left ELSE '{Status.FAILED}' END,
            error = e.error, changed_at = statement_timestamp(), ended_at = statement_timestamp()
        FROM ended e WHERE p.id = e.id
    """)
    connection.execute(query, {"batch_id": batch_id, "step": step, "left": str(left)})


def tallies(connection: Connection, batch_id: int) -> dict[str, PartTally]:
    """Return the tallies by step; a step without partitions is not in it."""
    statuses = (Status.COMPLETED, Status.FAILED, Status.RUNNING, Status.COMPENSATED)
    numbers = ", ".join(
        f"CAST(count(*) FILTER (WHERE p.status = '{status}') AS integer)" for status in statuses
    )
    query = text(f"""
        SELECT p.step, CAST(count(*) AS integer), {numbers},
            CAST(sum(p.read_rows) AS bigint), CAST(sum(p.written_rows) AS bigint),
            CAST(sum(p.skipped_rows) AS bigint), CAST(sum(p.failed_rows) AS bigint)
        FROM {t.PARTITION} p WHERE p.batch_id = :batch_id GROUP BY p.step
    """)
    found = {}
    for row in connection.execute(query, {"batch_id": batch_id}):
        of: Any = (*row[1:6], RowCounts(*row[6:]))
        found[row.step] = PartTally(*of)
    return found


def results(
    connection: Connection, batch_id: int, step: str, status: Status | None = None
) -> Iterator[PartResult]:
    """Yield the results of partitions by number, read 500 at a time; None: of any status."""
    query = text(f"""
        SELECT v.partition_no, v.low_key, v.high_key, v.status, v.checkpoint,
            v.read_rows, v.written_rows, v.skipped_rows, v.failed_rows
        FROM {t.PARTITIONS} v
        WHERE v.batch_id = :batch_id AND v.step = :step AND v.partition_no > :after
          AND (CAST(:status AS text) IS NULL OR v.status = :status)
        ORDER BY v.partition_no LIMIT :most
    """)
    values: dict[str, Any] = {"batch_id": batch_id, "step": step, "after": -1, "most": 500}
    while True:
        rows = connection.execute(query, {**values, "status": status and str(status)}).all()
        for row in rows:
            state = (row.checkpoint or {}).get("state") or {}
            of: Any = (*row[:3], Status(row.status), state, RowCounts(*row[5:]))
            yield PartResult(*of)
        if len(rows) < values["most"]:
            return
        values["after"] = rows[-1].partition_no


def undo(connection: Connection, partition_id: int) -> bool:
    """Reset a failed partition that was compensated, as if it had never started."""
    reset = text(f"""
        UPDATE {t.PARTITION} p
        SET status = '{Status.COMPENSATED}', checkpoint = NULL, read_rows = 0,
            written_rows = 0, skipped_rows = 0, failed_rows = 0,
            changed_at = statement_timestamp(), ended_at = statement_timestamp()
        WHERE p.id = :id AND p.status = '{Status.FAILED}'
        RETURNING p.batch_id, p.step, p.partition_no
    """)
    unskip = text(f"""
        DELETE FROM {t.BATCH_SKIP}
        WHERE batch_id = :batch_id AND step = :step AND partition_no = :partition_no
    """)
    row = connection.execute(reset, {"id": partition_id}).first()
    if row is not None:
        connection.execute(unskip, row._asdict())
    return row is not None


_ACTIVE_STATUSES = ", ".join(f"'{status}'" for status in sorted(ACTIVE))
_ACTIVE = f"s.batch_id = b.id AND s.status IN ({_ACTIVE_STATUSES})"
_LOST = f"""{_ACTIVE} AND NOT EXISTS (
    SELECT FROM {t.PENDING} p WHERE p.biz_key = 'batch:' || b.id
      AND starts_with(p.name || ':', b.job || ':' || s.step || ':'))"""


def find_batches_with_lost_steps(connection: Connection, most: int) -> list[int]:
    """Return instances that seem to have lost steps; check again under their lock."""
    query = text(f"""
        SELECT b.id FROM {t.BATCH} b WHERE b.ended_at IS NULL
          AND (EXISTS (SELECT FROM {t.BATCH_STEP} s WHERE {_LOST})
            OR NOT EXISTS (SELECT FROM {t.BATCH_STEP} s WHERE {_ACTIVE}))
        ORDER BY b.id LIMIT :most
    """)
    return list(connection.execute(query, {"most": most}).scalars())


def find_lost_steps(connection: Connection, batch_id: int) -> list[str]:
    query = text(f"""
        SELECT s.step FROM {t.BATCH} b, {t.BATCH_STEP} s
        WHERE b.id = :batch_id AND {_LOST} ORDER BY s.step
    """)
    return list(connection.execute(query, {"batch_id": batch_id}).scalars())


def find_lost_cause(connection: Connection, batch_id: int, step: str) -> str | None:
    """Say why a step does not continue; None: the pools do not show it."""
    of_step = """
        t.biz_key = 'batch:' || b.id AND t.finished_at >= b.started_at
          AND t.name = ANY(ARRAY(SELECT concat_ws(':', b.job, CAST(:step AS text), w)
                                 FROM unnest(ARRAY['plan', 'join', 'reduce']) AS w))
          AND t.payload ->> 'run' = CAST(b.run AS text)"""
    query = text(f"""
        SELECT f.name, f.state, f.error FROM {t.BATCH} b, LATERAL (
            SELECT t.name, t.state, t.error, t.finished_at FROM {t.ERROR} t WHERE {of_step}
            UNION ALL
            SELECT t.name, t.state, t.error, t.finished_at FROM {t.COMPLETED} t
            WHERE {of_step} AND t.state <> '{State.SUCCEEDED}') AS f
        WHERE b.id = :batch_id ORDER BY f.finished_at DESC LIMIT 1
    """)
    row = connection.execute(query, {"batch_id": batch_id, "step": step}).first()
    if row is None:
        return None
    ended = f"Its {row.name.rpartition(':')[2]} ended {row.state}"
    return f"{ended}: {row.error}" if row.error else ended
