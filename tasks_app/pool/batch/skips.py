"""Rows that chunks left out, by their keys. Nothing else of a row is kept."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import Skipped
from tasks_app.domain.tasks.error_text import clean
from tasks_app.pool.tables import BATCH_SKIP, BATCH_STEP

LONGEST_KEY = 255
LONGEST_REASON = 1_000
_ADD = text(f"""
    INSERT INTO {BATCH_SKIP} (batch_id, step, partition_no, key, reason)
    SELECT :batch_id, :step, :partition_no, s.key, s.reason
    FROM unnest(CAST(:keys AS text[]), CAST(:reasons AS text[])) AS s(key, reason)
""")
_ALONE = text(f"""
    SELECT FROM {BATCH_STEP} WHERE batch_id = :batch_id AND step = :step FOR NO KEY UPDATE
""")
_COUNT = text(f"SELECT count(*) FROM {BATCH_SKIP} WHERE batch_id = :batch_id AND step = :step")
_FIND = text(f"""
    SELECT step, partition_no, key, reason, at FROM {BATCH_SKIP}
    WHERE batch_id = :batch_id AND (CAST(:step AS text) IS NULL OR step = :step)
    ORDER BY id LIMIT :most
""")


def add(
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
    connection.execute(_ADD, values)


def count(connection: Connection, batch_id: int, step: str) -> int:
    """Return how many rows of a step were left out, as far as this transaction sees."""
    return int(connection.execute(_COUNT, {"batch_id": batch_id, "step": step}).scalar_one())


def count_alone(connection: Connection, batch_id: int, step: str) -> int:
    """Return the count, and keep others from committing any until this transaction ends.

    The lock on the step also keeps away those who decide about the instance. So ask only in a
    chunk that leaves rows out.
    """
    connection.execute(_ALONE, {"batch_id": batch_id, "step": step})
    return count(connection, batch_id, step)


def find(
    connection: Connection, batch_id: int, *, step: str | None = None, most: int = 100
) -> list[Skipped]:
    """Return what was left out, in the order of the inserts."""
    rows = connection.execute(_FIND, {"batch_id": batch_id, "step": step, "most": most})
    return [Skipped(*row) for row in rows]
