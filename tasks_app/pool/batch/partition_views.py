"""Browse: partitions as the repository has them. Reads, never changes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.partition.keys import Key, KeyType
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Counts, Kind, Partition, Status, StoredPartition
from tasks_app.pool.tables import PARTITIONS

COLUMNS = """
    s.id, s.program_id, s.partition_no, s.batch_id, s.step, s.kind, s.key_type, s.key_column,
    s.low_key, s.high_key, s.has_range, s."values", s.owns_null, s.modulus, s.source, s.view_name,
    s.checksum, s.estimated_rows, s.status, s.checkpoint, s.read_rows, s.written_rows,
    s.skipped_rows, s.failed_rows, s.task_id, s.started_at, s.changed_at, s.ended_at, s.error
"""
_OF_PROGRAM = text(f"""
    SELECT {COLUMNS} FROM {PARTITIONS} s WHERE s.program_id = :program ORDER BY s.partition_no
""")
_OF_BATCH = text(f"""
    SELECT {COLUMNS} FROM {PARTITIONS} s WHERE s.batch_id = :batch_id
    ORDER BY s.program_id, s.partition_no
""")
_ONE = text(f"SELECT {COLUMNS} FROM {PARTITIONS} s WHERE s.id = :id")
_PROGRAMS = text(f"""
    SELECT s.program_id, count(*) AS partitions FROM {PARTITIONS} s WHERE s.batch_id IS NULL
    GROUP BY s.program_id ORDER BY s.program_id
""")


def of_program(connection: Connection, program: str) -> list[StoredPartition]:
    """Return the partitions of a program by number; none: it is unknown."""
    return [stored(row) for row in connection.execute(_OF_PROGRAM, {"program": program})]


def of_batch(connection: Connection, batch_id: int) -> list[StoredPartition]:
    """Return the partitions of a run of a job, by program and number."""
    return [stored(row) for row in connection.execute(_OF_BATCH, {"batch_id": batch_id})]


def one(connection: Connection, partition_id: int) -> StoredPartition | None:
    """Return one partition."""
    row = connection.execute(_ONE, {"id": partition_id}).one_or_none()
    return None if row is None else stored(row)


def programs(connection: Connection) -> dict[str, int]:
    """Return how many partitions each program has that people maintain."""
    return {row.program_id: row.partitions for row in connection.execute(_PROGRAMS)}


def stored(row: Any) -> StoredPartition:
    """Return the record of a row of ``COLUMNS``."""
    kind, key_type = Kind(row.kind), KeyType(row.key_type)
    of_range = key_type if kind is Kind.RANGE else KeyType.INTEGER
    span = Range(_key(of_range, row.low_key), _key(of_range, row.high_key))
    partition = Partition(
        row.partition_no,
        kind,
        span if row.has_range else None,
        tuple(_present(key_type, value) for value in row.values),
        row.owns_null,
        row.key_column,
        row.modulus,
        row.source,
        row.view_name,
        row.checksum,
        row.estimated_rows,
    )
    return StoredPartition(
        row.id,
        row.program_id,
        partition,
        key_type,
        row.batch_id,
        row.step,
        Status(row.status),
        row.checkpoint,
        Counts(row.read_rows, row.written_rows, row.skipped_rows, row.failed_rows),
        row.task_id,
        row.started_at,
        row.changed_at,
        row.ended_at,
        row.error,
    )


def _key(key_type: KeyType, text: str | None) -> Key | None:
    return None if text is None else _present(key_type, text)


def _present(key_type: KeyType, text: str) -> Key:
    """Return the key, or the text that is none: whoever checks the plan will say so."""
    try:
        return key_type.parse(text)
    except ValueError:
        return text
