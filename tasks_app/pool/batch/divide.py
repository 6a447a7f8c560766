"""A partition gives up the end of its range, which others own from the same commit on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.partition.keys import KeyType, write_key
from tasks_app.domain.partition.records import Partition, Status
from tasks_app.pool.tables import PARTITION, TEXT_RANGE

_LOCK_WAITING = text(f"""
    SELECT t.partition_no FROM {PARTITION} t
    WHERE t.program_id = :program AND t.status = '{Status.PLANNED}'
      AND t.checkpoint -> 'after' IS NULL
      AND (CAST(:only AS integer[]) IS NULL OR t.partition_no = ANY(CAST(:only AS integer[])))
    ORDER BY t.id FOR UPDATE
""")
_SHORTER = {
    "num_range": "numrange(lower(t.num_range), CAST(:high AS numeric))",
    "time_range": "tstzrange(lower(t.time_range), CAST(:high AS timestamp) AT TIME ZONE 'UTC')",
    "text_range": f"{TEXT_RANGE}(lower(t.text_range), :high)",
}
_SHORTEN = {
    column: text(f"""
    UPDATE {PARTITION} t SET {column} = {shorter}, estimated_rows = CAST(:rows AS bigint)
    WHERE t.id = :id
    """)
    for column, shorter in _SHORTER.items()
}

_END_AT = text(f"""
    UPDATE {PARTITION} t SET checkpoint = jsonb_build_object('until', CAST(:until AS jsonb))
    WHERE t.id = ANY(CAST(:ids AS bigint[]))
""")


def lock_waiting(
    connection: Connection, program: str, only: Iterable[int] | None = None
) -> list[int]:
    """Lock the partitions that no run has started (``only``: of these numbers); return numbers."""
    values = {"program": program, "only": None if only is None else sorted(only)}
    return sorted(connection.execute(_LOCK_WAITING, values).scalars())


def shorten(connection: Connection, partition_id: int, kept: Partition, key_type: KeyType) -> None:
    """Let a range end where ``kept`` does; its run must know, or not have begun.

    Insert the owners of the rest afterwards: the database refuses what overlaps.
    """
    high = None if kept.range is None else kept.range.high
    assert high is not None  # noqa: S101  else nothing is given up
    column = "num_range" if key_type.is_number else "text_range"
    statement = _SHORTEN["time_range" if key_type.is_time else column]
    connection.execute(statement, {"id": partition_id, "high": write_key(high), "rows": kept.rows})


def end_at(connection: Connection, partition_ids: Sequence[int], until: Any) -> None:
    """Let new partitions end where the one ended that they were part of."""
    connection.execute(_END_AT, {"ids": list(partition_ids), "until": json.dumps(until)})
