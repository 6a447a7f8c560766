"""Segments: a file is cut at ends of records, in one pass, with a checksum for each piece."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks_app.batch.files.records import BLOCK, FileHead, Record, decoded, head_of, records_of
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Partition, PartitionKind
from tasks_app.domain.partition.sources import File, Format


def segments(file: File, parts: int) -> list[Partition]:
    """Return up to ``parts`` segments of about as many bytes; fewer where records are large.

    Raises:
        PlanError: there is no such file, it is no text, its quotes do not match, or it changes.
    """
    with unchanged(file):
        low, high = body_of(file)
        head = head_of(file)
        targets = [low + part * (high - low) // parts for part in range(1, parts)]
        cutter = _Cutter(file, low, targets)
        with Path(file.path).open("rb") as stream:
            stream.seek(low)
            for record in records_of(stream, file.format):
                _check_quotes(file, head, record)
                cutter.take(record.raw, counts=head.is_narrow or not record.is_blank)
    return cutter.end()


def _check_quotes(file: File, head: FileHead, record: Record) -> None:
    """Refuse what cannot be read and is longer than a line: a stray quote hides the others."""
    lines = record.raw.count(b"\n")
    if file.format is not Format.CSV or (lines < 2 and record.raw.count(b'"') % 2 == 0):  # noqa: PLR2004
        return
    try:
        decoded(file, head, record.raw)
    except Exception as error:
        raise PlanError(
            f"{file}: a quote is opened and never closed, or not at the end of its field, in the "
            f"{max(1, lines)} lines before byte {record.end}: {error}. Write quotes within fields "
            "twice, as COPY does."
        ) from None


Version = tuple[int, ...]


@contextmanager
def unchanged(file: File) -> Iterator[Version]:
    """Give what tells a file as it is from all others that its path names before and after.

    Raises:
        PlanError: it is another one at the end.
    """
    before = _version(file)
    yield before
    if _version(file) != before:
        raise PlanError(f"{file} was changed while it was read. Plan it anew.")


def _version(file: File) -> Version:
    path = Path(file.path)
    if not path.is_file():
        raise PlanError(f"There is no file {file}. All workers must see it under this path.")
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(slots=True)
class _Cutter:
    """Sees a file's records in order."""

    file: File
    low: int
    """Where the open segment begins."""
    targets: list[int]
    """Where to cut, at the next border of records; ascending."""
    at: int = 0
    """How far the file was seen."""
    records: int = 0
    seen: Any = None
    made: list[Partition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.at, self.seen = self.low, _sum_of_head(self.file)

    def take(self, record: bytes, *, counts: bool) -> None:
        """Take a record, and cut behind it if that is due."""
        self.seen.update(record)
        self.at += len(record)
        self.records += counts
        if self.targets and self.at >= self.targets[0]:
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
        self.low, self.records, self.seen = self.at, 0, _sum_of_head(self.file)
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
    with unchanged(file):
        return head_of(file).begin, Path(file.path).stat().st_size


def verify(file: File, partition: Partition) -> None:
    """Compare a segment with its checksum; reads it whole.

    Raises:
        PlanError: the file has changed since it was split.
    """
    low, high = bounds_of(partition)
    seen = _sum_of_head(file)
    with Path(file.path).open("rb") as stream:
        stream.seek(low)
        left = high - low
        while left and (block := stream.read(min(BLOCK, left))):
            seen.update(block)
            left -= len(block)
    if left or seen.hexdigest() != partition.checksum:
        raise PlanError(f"{partition} was changed since {file} was split. Plan it anew.")


def _sum_of_head(file: File) -> Any:
    """Return a checksum of what precedes the records, since the header says what fields mean."""
    with Path(file.path).open("rb") as stream:
        return hashlib.sha256(stream.read(head_of(file).begin))


def bounds_of(partition: Partition) -> tuple[int, int]:
    """Return the first byte of a segment, and the first behind it.

    Raises:
        PlanError: it is not a segment.
    """
    span = partition.range
    if span is None or not isinstance(span.low, int) or not isinstance(span.high, int):
        raise PlanError(f"{partition} is no segment of a file. Split files by FlatFile.")
    return span.low, span.high
