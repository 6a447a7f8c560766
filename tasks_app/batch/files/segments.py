"""Segments of files: how a file is cut into them, verified, and read from a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.files.records import BLOCK, FileHead, Record, decoded, head_of, records_of
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Range
from tasks_app.domain.partition.records import File, Format, Partition, PartitionKind


def segments(file: File, parts: int) -> list[Partition]:
    """Return up to ``parts`` segments of about as many bytes; fewer where records are large."""
    made: list[Partition] = []
    with unchanged(file):
        low, high = body_of(file)
        head = head_of(file)
        targets = [low + part * (high - low) // parts for part in range(1, parts)]
        at, rows, seen = low, 0, _sum_of_head(file)

        def cut() -> None:
            nonlocal low, rows, seen, targets
            part = Partition(len(made) + 1, PartitionKind.SEGMENT, Range(low, at))
            made.append(replace(part, source=str(file), checksum=seen.hexdigest(), rows=rows))
            low, rows, seen = at, 0, _sum_of_head(file)
            targets = [target for target in targets if target > at]

        with Path(file.path).open("rb") as stream:
            stream.seek(low)
            for record in records_of(stream, file.format):
                _check_quotes(file, head, record)
                seen.update(record.raw)
                at += len(record.raw)
                rows += head.is_narrow or not record.is_blank
                if targets and at >= targets[0]:
                    cut()
        if at > low:
            cut()
    return made


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
    """Yield what identifies the file as it is; raise PlanError if it is another one at the end."""
    before = _version(file)
    yield before
    if _version(file) != before:
        raise PlanError(f"{file} was changed while it was read. Plan it again.")


def _version(file: File) -> Version:
    path = Path(file.path)
    if not path.is_file():
        raise PlanError(f"There is no file {file}. All workers must see it under this path.")
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def file_of(source: object, partition: Partition) -> File:
    if isinstance(source, File):
        return source
    if partition.kind is not PartitionKind.SEGMENT or partition.source is None:
        raise PlanError(f"{partition} is not a segment of a file. Split files by FlatFile.")
    return File(partition.source)


def body_of(file: File) -> tuple[int, int]:
    with unchanged(file):
        return head_of(file).begin, Path(file.path).stat().st_size


def verify(file: File, partition: Partition) -> None:
    """Compare a segment with its checksum; reads it whole. Raises PlanError if it has changed."""
    low, high = bounds_of(partition)
    seen = _sum_of_head(file)
    with Path(file.path).open("rb") as stream:
        stream.seek(low)
        left = high - low
        while left and (block := stream.read(min(BLOCK, left))):
            seen.update(block)
            left -= len(block)
    if left or seen.hexdigest() != partition.checksum:
        raise PlanError(f"{partition} was changed since {file} was split. Plan it again.")


def _sum_of_head(file: File) -> Any:
    """Return a checksum of what precedes the records, since the header says what fields mean."""
    with Path(file.path).open("rb") as stream:
        return hashlib.sha256(stream.read(head_of(file).begin))


def bounds_of(partition: Partition) -> tuple[int, int]:
    span = partition.range
    if span is None or not isinstance(span.low, int) or not isinstance(span.high, int):
        raise PlanError(f"{partition} is not a segment of a file. Split files by FlatFile.")
    return span.low, span.high


@dataclass(frozen=True, slots=True)
class FileRow:
    end: int  # where the next one begins, in bytes: how people and checkpoints find it
    fields: Any

    def __getitem__(self, name: Any) -> Any:
        return self.fields[name]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that cannot be read, which fails as a row does."""

    end: int
    error: Exception


class SegmentReader:
    """Reads one segment; compares a changed file with its checksum first."""

    until = None

    def __init__(self, file: File, partition: Partition) -> None:
        self._file = file
        self._partition = partition
        self._verified: Version | None = None

    def read(self, _connection: Connection, after: Any, size: int) -> Sequence[Any]:
        """Return the next records. Raises PlanError if the file has changed since it was split."""
        with unchanged(self._file) as version:
            if version != self._verified:  # a checkpoint, too, is a place in the file as it was
                verify(self._file, self._partition)
            rows = [self._row(record) for record in islice(self._records(after), size)]
        self._verified = version
        return rows

    def is_last(self, _connection: Connection, rows: Sequence[Any], size: int) -> bool:
        return len(rows) < size

    def leave_out(self, _connection: Connection, _rows: Sequence[Any]) -> None: ...

    def after(self, rows: Sequence[Any]) -> int:
        return int(rows[-1].end)

    def name(self, row: Any) -> str:
        return f"byte {row.end}"

    @cached_property
    def _head(self) -> FileHead:
        return head_of(self._file)

    def _records(self, after: int | None) -> Iterator[Record]:
        low, high = bounds_of(self._partition)
        with Path(self._file.path).open("rb") as stream:
            stream.seek(low if after is None else after)
            for record in records_of(stream, self._file.format):
                if record.end > high:
                    return
                if self._head.is_narrow or not record.is_blank:
                    yield record
                if record.end == high:
                    return

    def _row(self, record: Record) -> FileRow | Unreadable:
        try:
            return FileRow(record.end, decoded(self._file, self._head, record.raw))
        except Exception as error:  # csv has errors of its own, as JSON has
            return Unreadable(record.end, error)
