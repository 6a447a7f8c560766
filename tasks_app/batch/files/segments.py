"""Segments: a file is cut at ends of records, in one pass, with a checksum for each piece."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks_app.batch.files.records import (
    BLOCK,
    head_of,
    is_blank,
    lines_of,
)
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Partition, PartitionKind
from tasks_app.domain.partition.sources import File


def segments(file: File, parts: int) -> list[Partition]:
    """Return up to ``parts`` segments of about as many bytes; fewer where records are large.

    Raises:
        PlanError: there is no such file, it is no text, or a quote in it is never closed.
    """
    low, high = body_of(file)
    cutter = _Cutter(file, low, [low + part * (high - low) // parts for part in range(1, parts)])
    is_narrow, is_new, ends = head_of(file).is_narrow, True, True
    with Path(file.path).open("rb") as stream:
        stream.seek(low)
        for line, ends in lines_of(stream, file.format):
            counts = ends and (is_narrow or not (is_new and is_blank(line)))
            cutter.take(line, records=counts, may_cut=ends)
            is_new = ends
    if not ends:
        raise PlanError(
            f"{file}: a quote is opened and never closed, so that nobody knows where its "
            "records end. Write quotes within fields twice, as COPY does."
        )
    return cutter.end()


@dataclass(slots=True)
class _Cutter:
    """Sees a file's lines in order."""

    file: File
    low: int
    """Where the open segment begins."""
    targets: list[int]
    """Where to cut, at the next border of records; ascending."""
    at: int = 0
    """How far the file was seen."""
    records: int = 0
    seen: Any = field(default_factory=hashlib.sha256)
    made: list[Partition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.at = self.low

    def take(self, line: bytes, *, records: int, may_cut: bool) -> None:
        """Take a line, with which so many records end; cut behind it if it may be and is due."""
        self.seen.update(line)
        self.at += len(line)
        self.records += records
        if may_cut and self.targets and self.at >= self.targets[0]:
            self._close()

    def end(self) -> list[Partition]:
        if self.at > self.low:
            self._close()
        return self.made

    def _close(self) -> None:
        self.made.append(
            Partition(
                len(self.made) + 1,
                PartitionKind.SEGMENT,
                Range(self.low, self.at),
                source=str(self.file),
                checksum=self.seen.hexdigest(),
                rows=self.records,
            )
        )
        self.low, self.records, self.seen = self.at, 0, hashlib.sha256()
        self.targets = [target for target in self.targets if target > self.at]


def file_of(source: object, partition: Partition) -> File:
    """Return the file that a segment is of: the source, or what a table was extracted to.

    Raises:
        PlanError: it is not a segment.
    """
    if isinstance(source, File):
        return source
    if partition.kind is not PartitionKind.SEGMENT or partition.source is None:
        raise PlanError(f"{partition} is no segment of a file. Split files by FlatFile.")
    return File(partition.source)


def body_of(file: File) -> tuple[int, int]:
    """Return where the records begin and where the file ends, in bytes.

    Raises:
        PlanError: there is no such file, or it is not text.
    """
    path = Path(file.path)
    if not path.is_file():
        raise PlanError(f"There is no file {file}. All workers must see it under this path.")
    return head_of(file).begin, path.stat().st_size


def verify(file: File, partition: Partition) -> None:
    """Compare a segment with its checksum; reads it whole.

    Raises:
        PlanError: the file has changed since it was split.
    """
    low, high = bounds_of(partition)
    seen = hashlib.sha256()
    with Path(file.path).open("rb") as stream:
        stream.seek(low)
        left = high - low
        while left and (block := stream.read(min(BLOCK, left))):
            seen.update(block)
            left -= len(block)
    if left or seen.hexdigest() != partition.checksum:
        raise PlanError(f"{partition} was changed since {file} was split. Plan it anew.")


def bounds_of(partition: Partition) -> tuple[int, int]:
    """Return the first byte of a segment, and the first behind it.

    Raises:
        PlanError: it is not a segment.
    """
    span = partition.range
    if span is None or not isinstance(span.low, int) or not isinstance(span.high, int):
        raise PlanError(f"{partition} is no segment of a file. Split files by FlatFile.")
    return span.low, span.high
