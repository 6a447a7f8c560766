"""Files: how a segment of records is read, and whether it is still the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks_app.batch.file_records import BLOCK, Look, Record, fields_of, look, records_of
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Kind, Partition
from tasks_app.domain.partition.sources import File, Format


@dataclass(slots=True)
class Reader:
    """Reads records of a file from any place where one begins."""

    file: File
    _look: Look | None = None

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
                if self.look.is_narrow or not record.is_blank:
                    yield record
                if record.end == high:
                    return

    def decode(self, record: Record) -> Any:
        """Return a record's fields by name, without a header as a list; of JSON what it says.

        Raises:
            ValueError: it cannot be read; whoever reads it may skip it.
        """
        text = record.raw.decode()
        if self.file.format is Format.JSON_LINES:
            return json.loads(text)
        fields = fields_of(text)
        if not self.file.header:
            return fields
        columns = self.look.columns
        if len(fields) != len(columns):
            raise ValueError(f"{len(fields)} fields, but the header names {len(columns)}")
        return dict(zip(columns, fields, strict=True))

    @property
    def look(self) -> Look:
        """What the beginning of the file tells."""
        if self._look is None:
            self._look = look(self.file)
        return self._look


def file_of(source: object, partition: Partition) -> File:
    """Return the file that a segment is of: the source, or what a table was extracted to.

    Raises:
        PlanError: it is no segment.
    """
    if isinstance(source, File):
        return source
    if partition.kind is not Kind.SEGMENT or partition.source is None:
        raise PlanError(f"{partition} is no segment of a file. Split files by FlatFile.")
    return File(partition.source)


def body_of(file: File) -> tuple[int, int]:
    """Return where the records begin and where the file ends, in bytes.

    Raises:
        PlanError: there is no such file, or it is no text.
    """
    path = Path(file.path)
    if not path.is_file():
        raise PlanError(f"There is no file {file}. All workers must see it under this path.")
    return look(file).begin, path.stat().st_size


def verify(file: File, partition: Partition) -> None:
    """Compare a segment with its checksum; reads it whole.

    Raises:
        PlanError: the file was changed since it was split.
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
        PlanError: it is no segment.
    """
    span = partition.range
    if span is None or not isinstance(span.low, int) or not isinstance(span.high, int):
        raise PlanError(f"{partition} is no segment of a file. Split files by FlatFile.")
    return span.low, span.high
