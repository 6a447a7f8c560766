"""Segments of files: how a file is cut into them, verified, and read from a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.files.records import BLOCK, FileHead, Record, decoded, head_of, records_of
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Range
from tasks_app.domain.partition.records import File, Format, Partition, PartitionKind


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

    Raises PlanError if it is another one at the end.
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
    low: int  # where the open segment begins
    targets: list[int]  # where to cut, at the next border of records; ascending
    at: int = 0  # how far the file was seen
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

    Raises PlanError if it is not a segment.
    """
    if isinstance(source, File):
        return source
    if partition.kind is not PartitionKind.SEGMENT or partition.source is None:
        raise PlanError(f"{partition} is no segment of a file. Split files by FlatFile.")
    return File(partition.source)


def body_of(file: File) -> tuple[int, int]:
    """Return where the records begin and where the file ends, in bytes.

    Raises PlanError if there is no such file, or it is not text.
    """
    with unchanged(file):
        return head_of(file).begin, Path(file.path).stat().st_size


def verify(file: File, partition: Partition) -> None:
    """Compare a segment with its checksum; reads it whole.

    Raises PlanError if the file has changed since it was split.
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

    Raises PlanError if it is not a segment.
    """
    span = partition.range
    if span is None or not isinstance(span.low, int) or not isinstance(span.high, int):
        raise PlanError(f"{partition} is no segment of a file. Split files by FlatFile.")
    return span.low, span.high


@dataclass(slots=True)
class FileReader:
    """Reads records of a file from any place where one begins."""

    file: File
    _head: FileHead | None = None

    def records(self, partition: Partition, after: int | None = None) -> Iterator[Record]:
        """Yield a segment's records in order; ``after``: those behind this checkpoint.

        Blank lines are passed over, unless a record is one field. Memory holds one at a time.
        """
        low, high = bounds_of(partition)
        with Path(self.file.path).open("rb") as stream:
            stream.seek(low if after is None else after)
            for record in records_of(stream, self.file.format):
                if record.end > high:
                    return
                if self.head.is_narrow or not record.is_blank:
                    yield record
                if record.end == high:
                    return

    def decode(self, record: Record) -> Any:
        """Return what a record says; see ``records.decoded``."""
        return decoded(self.file, self.head, record.raw)

    @property
    def head(self) -> FileHead:
        if self._head is None:
            self._head = head_of(self.file)
        return self._head


@dataclass(frozen=True, slots=True)
class FileRow:
    """A record: its fields by name or number."""

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
    """Reads one segment; a file that is not as it was is compared with its checksum first."""

    until = None

    def __init__(self, file: File, partition: Partition) -> None:
        self._reader = FileReader(file)
        self._file = file
        self._partition = partition
        self._verified: Version | None = None

    def read(self, _connection: Connection, after: Any, size: int) -> Sequence[Any]:
        """Return the next records.

        Raises PlanError if the file has changed since it was split, or changes now.
        """
        with unchanged(self._file) as version:
            if version != self._verified:  # a checkpoint, too, is a place in the file as it was
                verify(self._file, self._partition)
            records = self._reader.records(self._partition, after)
            rows = [self._row(record) for record in islice(records, size)]
        self._verified = version
        return rows

    def is_last(self, _connection: Connection, rows: Sequence[Any], size: int) -> bool:
        return len(rows) < size

    def leave_out(self, _connection: Connection, _rows: Sequence[Any]) -> None: ...

    def after(self, rows: Sequence[Any]) -> int:
        """Return where the next record begins."""
        return int(rows[-1].end)

    def name(self, row: Any) -> str:
        return f"byte {row.end}"

    def _row(self, record: Record) -> FileRow | Unreadable:
        try:
            return FileRow(record.end, self._reader.decode(record))
        except Exception as error:  # csv has errors of its own, as JSON has
            return Unreadable(record.end, error)
