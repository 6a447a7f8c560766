"""Segments of files, some records at a time; the checkpoint is the byte behind the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.files import Reader, Record, verify
from tasks_app.domain.partition.records import Partition
from tasks_app.domain.partition.sources import File


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
    """Of one segment; before the first record it is compared with its checksum."""

    def __init__(self, file: File, partition: Partition) -> None:
        self._reader = Reader(file)
        self._file = file
        self._partition = partition

    def read(self, _connection: Connection, after: Any, size: int) -> Sequence[Any]:
        """Return the next records.

        Raises:
            PlanError: the file was changed since it was split.
        """
        if after is None:
            verify(self._file, self._partition)
        records = self._reader.records(self._partition, after)
        return [self._row(record) for record in islice(records, size)]

    def is_last(self, _connection: Connection, rows: Sequence[Any], size: int) -> bool:
        """Whether the segment ends here."""
        return len(rows) < size

    def leave_out(self, _connection: Connection, _rows: Sequence[Any]) -> None:
        """Do nothing: a file does not want to know."""

    def after(self, rows: Sequence[Any]) -> int:
        """Return where the next record begins."""
        return int(rows[-1].end)

    def name(self, row: Any) -> str:
        """Return where the record ends."""
        return f"byte {row.end}"

    def _row(self, record: Record) -> FileRow | Unreadable:
        try:
            return FileRow(record.end, self._reader.decode(record))
        except Exception as error:  # csv has errors of its own, as JSON has
            return Unreadable(record.end, error)
