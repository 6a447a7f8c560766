"""Segments of files, some records at a time; the checkpoint is the byte behind the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.file_records import Record
from tasks_app.batch.files import Reader, bounds_of, verify
from tasks_app.domain.errors import PlanError
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
    """Of one segment; each run compares it with its checksum before it reads a record."""

    until = None

    def __init__(self, file: File, partition: Partition) -> None:
        self._reader = Reader(file)
        self._file = file
        self._partition = partition
        self._is_verified = False

    def read(self, _connection: Connection, after: Any, size: int) -> Sequence[Any]:
        """Return the next records.

        Raises:
            PlanError: the file was changed since it was split.
        """
        if not self._is_verified:  # a checkpoint, too, is a place in the file as it was
            verify(self._file, self._partition)
            self._is_verified = True
        records = self._reader.records(self._partition, after)
        return [self._row(record) for record in islice(records, size)]

    def is_last(self, _connection: Connection, rows: Sequence[Any], size: int) -> bool:
        """Whether the segment ends here.

        Raises:
            PlanError: the file ends before it.
        """
        if len(rows) == size:
            return False
        if Path(self._file.path).stat().st_size < bounds_of(self._partition)[1]:
            raise PlanError(f"{self._file} became shorter while it was read. Plan it anew.")
        return True

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
