"""What retention would let go now: read, and left as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from tasks_app.domain.config.retention import Keep, format_age
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.states import Pool
from tasks_app.pool.batch.prune import count_old as count_batches
from tasks_app.pool import retention
from tasks_app.pool.retention.partitions import due_names, owns, partitions
from tasks_app.pool.tables import BATCH, ERROR


@dataclass(frozen=True, slots=True)
class RetentionPreview:
    """A partition, or rows of one, that are too old."""

    pool: Pool | None
    """None: what batch jobs left, counted by their instances."""
    what: str
    rows: int
    bytes: int
    """Of a partition on the disk, indexes and all; of rows their own."""
    how: str
    """``dropped`` at once, or ``deleted`` row by row."""
    kept: str
    """The age that is over."""


def preview_retention(connection: Connection, settings: Settings) -> Iterator[RetentionPreview]:
    """Count what is too old. Reads all of it."""
    retention.take_time(connection)
    yield from _days(connection, settings.completed)
    for pool, table, keep in (
        (Pool.COMPLETED, retention.DEFAULT, settings.completed),
        (Pool.ERROR, ERROR, settings.errors),
    ):
        rows, size = retention.count_old(connection, table, keep)
        if rows:
            yield RetentionPreview(pool, table, rows, size, "deleted", format_age(keep.shortest))
    found, size = count_batches(connection, settings.batches)
    if found:
        age = format_age(settings.batches.shortest)
        yield RetentionPreview(None, BATCH, found, size, "deleted", age)


def _days(connection: Connection, keep: Keep) -> Iterator[RetentionPreview]:
    if not owns(connection):
        return
    found, now = partitions(connection)
    for day in found:
        if not day.attached or (keep.longest is not None and day.until <= now - keep.longest):
            rows, _ = retention.count_in(connection, day)
            age = format_age(keep.longest)
            yield RetentionPreview(Pool.COMPLETED, day.name, rows, day.bytes, "dropped", age)
            continue
        for name in due_names(day, keep.early, now):
            rows, size = retention.count_in(connection, day, name)
            if rows:
                what, age = f"{name} in {day.name}", format_age(keep.names[name])
                yield RetentionPreview(Pool.COMPLETED, what, rows, size, "deleted", age)
