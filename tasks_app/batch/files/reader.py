"""Segments of files, some records at a time; the checkpoint is the byte behind the last one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.files.records import FileHead, Record, decoded, head_of, records_of
from tasks_app.batch.files.segments import Version, bounds_of, unchanged, verify
from tasks_app.domain.partition.records import Partition
from tasks_app.domain.partition.sources import File


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

    end: int
    """Where the next one begins, in bytes: how people and checkpoints find it."""
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

        Raises:
            PlanError: the file has changed since it was split, or changes now.
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
