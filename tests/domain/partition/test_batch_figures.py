"""How far, how fast, until when, how uneven."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tasks_app.domain.batch.records import figures_of, progress_bar
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Partition, RowCounts, Status, StoredPartition

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def part(number: int, rows: int | None, read: int, status: Status, **more: Any) -> StoredPartition:
    given: dict[str, Any] = {"started_at": NOON if read else None, "ended_at": None, **more}
    return StoredPartition(
        number,
        "p#1",
        Partition(number, rows=rows),
        KeyType.INTEGER,
        1,
        "s",
        status,
        None,
        RowCounts(read, read),
        None,
        changed_at=NOON,
        error=None,
        **given,
    )


def test_a_step_that_runs() -> None:
    later = NOON + timedelta(seconds=10)
    parts = [part(1, 100, 100, Status.COMPLETED), part(2, 300, 100, Status.RUNNING)]

    figures = figures_of(parts, later)

    assert (figures.read, figures.rows, figures.per_second) == (200, 400, 20)
    assert figures.left == timedelta(seconds=10)
    assert figures.skew == 1.5
    assert progress_bar(figures.fraction, 10) == "#####....."


def test_what_a_complete_partition_read_counts_and_not_what_was_guessed() -> None:
    ended = NOON + timedelta(seconds=4)
    parts = [part(1, 1000, 40, Status.COMPLETED, ended_at=ended)]

    figures = figures_of(parts, NOON + timedelta(days=1))

    assert (figures.rows, figures.per_second, figures.fraction) == (40, 10, 1.0)


def test_nothing_is_known_of_what_nobody_counted() -> None:
    figures = figures_of([part(1, None, 0, Status.PLANNED)], NOON)

    assert (figures.rows, figures.per_second, figures.left, figures.skew) == (None,) * 4
    assert progress_bar(figures.fraction, 3) == "???"
    assert figures_of([], NOON).read == 0
