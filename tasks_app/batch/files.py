"""Files: where records end, how a segment of them is read, and whether it is still the same."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Kind, Partition
from tasks_app.domain.partition.sources import File, Format

BLOCK = 2**20
QUOTE = b'"'
_BOM = b"\xef\xbb\xbf"


class Record(NamedTuple):
    """One record of a file, not yet decoded."""

    end: int
    """Where the next one begins: a checkpoint."""
    raw: bytes


@dataclass(slots=True)
class Reader:
    """Reads records of a file from any place where one begins."""

    file: File
    _columns: list[str] = field(default_factory=list)

    def records(self, partition: Partition, after: int | None = None) -> Iterator[Record]:
        """Yield a segment's records in order; ``after``: those behind this checkpoint.

        Blank lines are passed over. Memory holds one record at a time.
        """
        low, high = bounds_of(partition)
        with Path(self.file.path).open("rb") as stream:
            stream.seek(low if after is None else after)
            for record in _records(stream, self.file.format):
                if record.end > high:
                    return
                yield record
                if record.end == high:
                    return

    def decode(self, record: Record) -> Any:
        """Return a record's fields by name, without a header as a list; of JSON what it says.

        Raises:
            ValueError: it cannot be read; whoever reads it may skip it.
        """
        text = record.raw.removeprefix(_BOM).decode()
        if self.file.format is Format.JSON_LINES:
            return json.loads(text)
        (fields,) = csv.reader(io.StringIO(text, newline=""), strict=True)
        if not self.file.header:
            return fields
        columns = self.columns()
        if len(fields) != len(columns):
            raise ValueError(f"{len(fields)} fields, but the header names {len(columns)}")
        return dict(zip(columns, fields, strict=True))

    def columns(self) -> list[str]:
        """Return the names in the header."""
        if not self._columns:
            with Path(self.file.path).open("rb") as stream:
                first = next(_records(stream, self.file.format), Record(0, b""))
            text = first.raw.removeprefix(_BOM).decode()
            self._columns = next(csv.reader(io.StringIO(text, newline="")), [])
        return self._columns


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


def has_header(file: File) -> bool:
    """Whether the first record is none."""
    return file.header and file.format is Format.CSV


def body_of(file: File) -> tuple[int, int]:
    """Return where the records begin and where the file ends, in bytes.

    Raises:
        PlanError: there is no such file.
    """
    path = Path(file.path)
    if not path.is_file():
        raise PlanError(f"There is no file {file}. All workers must see it under this path.")
    size = path.stat().st_size
    if not has_header(file):
        return 0, size
    with path.open("rb") as stream:
        return next(_records(stream, file.format, blank=True), Record(0, b"")).end, size


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


def _records(stream: BinaryIO, form: Format, *, blank: bool = False) -> Iterator[Record]:
    """Yield records from here on; the last one may lack its line's end."""
    lines: list[bytes] = []
    quotes = 0
    end = stream.tell()
    for line in stream:
        end += len(line)
        lines.append(line)
        if form is Format.CSV:
            quotes += line.count(QUOTE)
            if quotes % 2:
                continue
        raw = b"".join(lines)
        lines, quotes = [], 0
        if blank or raw.strip(b"\r\n"):
            yield Record(end, raw)
    if lines:
        yield Record(end, b"".join(lines))
