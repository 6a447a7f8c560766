"""The partitions of a step: inserted from a plan, read, and shortened for others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.partition.keys import KeyType, Range, write_key
from tasks_app.domain.partition.records import (
    Partition,
    PartitionKind,
    Plan,
    RowCounts,
    Status,
    StoredPartition,
)
from tasks_app.pool.tables import PARTITION, PARTITION_VALUE, PARTITIONS, TEXT_RANGE

_INSERT = text(f"""
    INSERT INTO {PARTITION} (program_id, partition_no, batch_id, step, kind, key_type, key_column,
        num_range, time_range, text_range, owns_null, modulus, source, view_name, checksum,
        estimated_rows)
    SELECT :program, r.no, CAST(:batch_id AS bigint), CAST(:step AS text), r.kind, :key_type,
        r.key_column,
        CASE r.line WHEN 'num' THEN numrange(CAST(r.low AS numeric), CAST(r.high AS numeric)) END,
        CASE r.line WHEN 'time' THEN tstzrange(CAST(r.low AS timestamp) AT TIME ZONE 'UTC',
            CAST(r.high AS timestamp) AT TIME ZONE 'UTC') END,
        CASE r.line WHEN 'text' THEN {TEXT_RANGE}(r.low, r.high) END,
        r.owns_null, r.modulus, r.source, r.view_name, r.checksum, r.estimated_rows
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(no integer, kind text, key_column text,
        line text, low text, high text, owns_null boolean, modulus integer, source text,
        view_name text, checksum text, estimated_rows bigint)
    ORDER BY r.no
    RETURNING partition_no, id
""")


def insert(
    connection: Connection,
    program: str,
    plan: Plan,
    *,
    batch_id: int | None = None,
    step: str | None = None,
) -> dict[int, int]:
    """Insert the partitions of a checked plan; return their ids by number.

    The database refuses what overlaps (SQLSTATE 23P01) or is there already (23505).
    """
    rows = [_row(partition, plan.key_type) for partition in plan.partitions]
    values = {"program": program, "batch_id": batch_id, "step": step, "rows": json.dumps(rows)}
    found = connection.execute(_INSERT, {**values, "key_type": str(plan.key_type)})
    ids = {row.partition_no: row.id for row in found}
    listed = [
        {"no": partition.number, "value": write_key(value)}
        for partition in plan.partitions
        for value in partition.values
    ]
    query = text(f"""
        INSERT INTO {PARTITION_VALUE} (program_id, value, partition_no)
        SELECT :program, r.value, r.no
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(no integer, value text) ORDER BY r.value
    """)
    if listed:
        connection.execute(query, {"program": program, "rows": json.dumps(listed)})
    return ids


def assign(connection: Connection, tasks: Mapping[int, int]) -> None:
    rows = [{"id": partition, "task_id": task} for partition, task in sorted(tasks.items())]
    query = text(f"""
        UPDATE {PARTITION} t SET task_id = r.task_id
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id bigint, task_id bigint)
        WHERE t.id = r.id
    """)
    connection.execute(query, {"rows": json.dumps(rows)})


def remove(connection: Connection, program: str, *, started: bool = False) -> list[int]:
    """Remove the partitions that have not started, or all (``started``); return their numbers.

    To plan the rest of a program again, insert partitions that cover the same keys.
    """
    values = {"program": program, "started": started}
    query = text(f"""
        WITH chosen AS MATERIALIZED (
            SELECT t.id FROM {PARTITION} t
            WHERE t.program_id = :program AND (t.status = '{Status.PLANNED}' OR :started)
            ORDER BY t.id FOR UPDATE)
        DELETE FROM {PARTITION} t USING chosen c WHERE t.id = c.id RETURNING t.partition_no
    """)
    return sorted(connection.execute(query, values).scalars())


def _row(partition: Partition, key_type: KeyType) -> dict[str, Any]:
    span = partition.range
    line = None
    if span is not None:
        is_number = partition.kind is not PartitionKind.RANGE or key_type.is_number
        line = "num" if is_number else "time" if key_type.is_time else "text"
    return {
        "no": partition.number,
        "kind": str(partition.kind),
        "key_column": partition.column,
        "line": line,
        "low": None if span is None or span.low is None else write_key(span.low),
        "high": None if span is None or span.high is None else write_key(span.high),
        "owns_null": partition.owns_null,
        "modulus": partition.modulus,
        "source": partition.source,
        "view_name": partition.view,
        "checksum": partition.checksum,
        "estimated_rows": partition.rows,
    }


def find_by_program(connection: Connection, program: str) -> list[StoredPartition]:
    return _find(connection, "s.program_id = :program", {"program": program})


def find_by_batch(connection: Connection, batch_id: int) -> list[StoredPartition]:
    return _find(connection, "s.batch_id = :batch_id", {"batch_id": batch_id})


def get(connection: Connection, partition_id: int) -> StoredPartition | None:
    return next(iter(_find(connection, "s.id = :id", {"id": partition_id})), None)


def _find(connection: Connection, where: str, values: dict[str, Any]) -> list[StoredPartition]:
    query = text(f"""
        SELECT s.partition_no, s.kind, s.low_key, s.high_key, s.has_range, s."values", s.owns_null,
            s.key_column, s.modulus, s.source, s.view_name, s.checksum, s.estimated_rows, s.id,
            s.program_id, s.key_type, s.batch_id, s.step, s.status, s.checkpoint, s.read_rows,
            s.written_rows, s.skipped_rows, s.failed_rows, s.task_id, s.started_at, s.changed_at,
            s.ended_at, s.error
        FROM {PARTITIONS} s WHERE {where} ORDER BY s.program_id, s.partition_no
    """)
    return [_stored(row) for row in connection.execute(query, values)]


def _stored(row: Any) -> StoredPartition:
    kind, key_type = PartitionKind(row.kind), KeyType(row.key_type)
    of_range = key_type if kind is PartitionKind.RANGE else KeyType.INTEGER
    low, high = (_parsed(of_range, key) for key in (row.low_key, row.high_key))
    span = Range(low, high) if row.has_range else None
    values = tuple(_parsed(key_type, value) for value in row.values)
    partition = Partition(row.partition_no, kind, span, values, *row[6:13])
    status, counts = Status(row.status), RowCounts(*row[20:24])
    of_run = row.batch_id, row.step, status, row.checkpoint, counts
    return StoredPartition(row.id, row.program_id, partition, key_type, *of_run, *row[24:])


def _parsed(key_type: KeyType, text: str | None) -> Any:
    """Return the key, or the text that is none, which the check of the plan reports."""
    try:
        return None if text is None else key_type.parse(text)
    except ValueError:
        return text


def lock_waiting(
    connection: Connection, program: str, only: Iterable[int] | None = None
) -> list[int]:
    """Lock the partitions that no run has started (``only``: of these numbers); return numbers."""
    values = {"program": program, "only": None if only is None else sorted(only)}
    query = text(f"""
        SELECT t.partition_no FROM {PARTITION} t
        WHERE t.program_id = :program AND t.status = '{Status.PLANNED}'
          AND t.checkpoint -> 'after' IS NULL
          AND (CAST(:only AS integer[]) IS NULL OR t.partition_no = ANY(CAST(:only AS integer[])))
        ORDER BY t.id FOR UPDATE
    """)
    return sorted(connection.execute(query, values).scalars())


def shorten_range(
    connection: Connection, partition_id: int, kept: Partition, key_type: KeyType
) -> None:
    """Let a range end where ``kept`` does; its run must know, or must not have begun.

    Insert the owners of the other keys afterwards: the database refuses overlaps.
    """
    high = None if kept.range is None else kept.range.high
    assert high is not None  # noqa: S101  otherwise nothing is given away
    shorter = f"text_range = {TEXT_RANGE}(lower(t.text_range), :high)"
    if key_type.is_number:
        shorter = "num_range = numrange(lower(t.num_range), CAST(:high AS numeric))"
    elif key_type.is_time:
        end = "CAST(:high AS timestamp) AT TIME ZONE 'UTC'"
        shorter = f"time_range = tstzrange(lower(t.time_range), {end})"
    query = text(f"""
        UPDATE {PARTITION} t SET {shorter}, estimated_rows = CAST(:rows AS bigint) WHERE t.id = :id
    """)
    connection.execute(query, {"id": partition_id, "high": write_key(high), "rows": kept.rows})


def set_range_end(connection: Connection, partition_ids: Sequence[int], until: Any) -> None:
    """Let new partitions end where the one ended that they come from."""
    query = text(f"""
        UPDATE {PARTITION} t SET checkpoint = jsonb_build_object('until', CAST(:until AS jsonb))
        WHERE t.id = ANY(CAST(:ids AS bigint[]))
    """)
    connection.execute(query, {"ids": list(partition_ids), "until": json.dumps(until)})
