"""Figures of a step that runs: progress, speed, time left, skew."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from tasks_app.domain.partition.records import Status, StoredPartition

WIDTH = 20


class Figures(NamedTuple):
    """What people want to know about a step."""

    read: int
    rows: int | None
    """How many there are to read, by the plan's estimate; None: unknown."""
    per_second: float | None
    """Rows read per second since the first partition started; None: nothing was read."""
    left: timedelta | None
    """How much longer it takes at this speed."""
    skew: float | None
    """The largest partition / the mean, in rows that were read or are estimated; 1: all alike."""

    @property
    def fraction(self) -> float | None:
        """The share of rows that was read, 0 to 1; None: unknown."""
        return None if not self.rows else min(1.0, self.read / self.rows)


def figures_of(partitions: Iterable[StoredPartition], now: datetime | None) -> Figures:
    """Return the figures of a step's partitions; of a complete one the rows that it read count."""
    parts = list(partitions)
    sizes = [_size(part) for part in parts]
    read = sum(part.counts.read for part in parts)
    known = [size for size in sizes if size is not None]
    rows = sum(known) if known and len(known) == len(sizes) else None
    mean = sum(known) / len(known) if known else 0
    skew = max(known) / mean if mean else None
    speed = _speed(parts, read, now)
    left = None
    if rows is not None and speed:
        left = timedelta(seconds=max(0, rows - read) / speed)
    return Figures(read, rows, speed, left, skew)


def bar(fraction: float | None, width: int = WIDTH) -> str:
    if fraction is None:
        return "?" * width
    full = int(fraction * width)
    return "#" * full + "." * (width - full)


def _size(part: StoredPartition) -> int | None:
    if part.status is Status.COMPLETED or part.partition.rows is None:
        return part.counts.read if part.status is Status.COMPLETED else None
    return max(part.partition.rows, part.counts.read)


def _speed(parts: list[StoredPartition], read: int, now: datetime | None) -> float | None:
    starts = [part.started_at for part in parts if part.started_at is not None]
    if not starts or not read:
        return None
    goes_on = any(part.status in {Status.PLANNED, Status.RUNNING} for part in parts)
    last = now if goes_on and now else max(part.ended_at or part.changed_at for part in parts)
    return read / max(0.001, (last - min(starts)).total_seconds())
