"""Records of files: where they end, what the first one says, and the fields of a CSV record.

What cuts a file and what reads it both use this, so they agree.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import File, Format

BLOCK = 2**20
_QUOTE = b'"'
_BZIP2 = b"BZh"  # it begins like text; what gzip, xz, zstd and zip write does not
_LONG = 2**16  # characters of a record that may have a field beyond csv's limit of 131,072
_LIMIT = threading.Lock()  # that limit belongs to the process


class Record(NamedTuple):
    end: int  # where the next one begins: a checkpoint
    raw: bytes

    @property
    def is_blank(self) -> bool:
        return not self.raw.strip(b"\r\n")


class FileHead(NamedTuple):
    begin: int  # where its records begin: behind the header
    columns: list[str]
    is_narrow: bool  # a record is one field, so a blank line is one, too: NULL, as COPY writes it


def head_of(file: File) -> FileHead:
    """Read the beginning of a file. Raises PlanError if it is not text."""
    with Path(file.path).open("rb") as stream:
        mark = len(codecs.BOM_UTF8) if stream.read(3) == codecs.BOM_UTF8 else 0
        stream.seek(mark)
        _check(file, _first(io.BytesIO(stream.read(BLOCK)), file.format).raw)
        stream.seek(mark)
        first = _first(stream, file.format)
    if file.format is not Format.CSV:
        return FileHead(mark, [], is_narrow=False)
    columns = _columns(file, first.raw)
    begin = first.end if file.header else mark
    return FileHead(begin, columns, is_narrow=len(columns) == 1)


def records_of(stream: BinaryIO, form: Format) -> Iterator[Record]:
    """Yield records from here on, blank lines too; in CSV none ends within double quotes."""
    lines: list[bytes] = []
    end, quotes = stream.tell(), 0
    for line in stream:
        end += len(line)
        lines.append(line)
        if form is Format.CSV:
            quotes += line.count(_QUOTE)
        if quotes % 2 == 0:
            yield Record(end, b"".join(lines))
            lines = []
    if lines:
        yield Record(end, b"".join(lines))


def decoded(file: File, head: FileHead, raw: bytes) -> Any:
    """Return a record's fields by name, without a header as a list; of JSON its value."""
    text = raw.decode()
    if file.format is Format.JSON_LINES:
        return _EXACT.decode(text)
    fields = _fields_of(text)
    if not file.header:
        return fields
    if len(fields) != len(head.columns):
        raise ValueError(f"{len(fields)} fields, but the header names {len(head.columns)}")
    return dict(zip(head.columns, fields, strict=True))


def _fields_of(text: str) -> list[str]:
    """Return the fields of one record of CSV, of any length; of a blank line an empty one."""
    if len(text) < _LONG:
        found = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    else:
        with _LIMIT:
            limit = csv.field_size_limit()
            csv.field_size_limit(max(limit, len(text)))
            try:
                found = list(csv.reader(io.StringIO(text, newline=""), strict=True))
            finally:
                csv.field_size_limit(limit)
    if len(found) != 1:
        raise ValueError("a quote opens within a field")
    return found[0] or [""]


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


# It changes no number, and no value takes another's place.
_EXACT = json.JSONDecoder(
    parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys
)


def _first(stream: BinaryIO, form: Format) -> Record:
    records = records_of(stream, form)
    return next((each for each in records if not each.is_blank), Record(stream.tell(), b""))


def _columns(file: File, first: bytes) -> list[str]:
    try:
        columns = _fields_of(first.decode()) if first else []
    except (ValueError, csv.Error) as error:
        if file.header:
            raise PlanError(
                f"The header of {file} cannot be read: {error}. Write it as COPY does."
            ) from None
        return []  # it fails as a record does
    if file.header and (len(set(columns)) < len(columns) or not all(map(str.strip, columns))):
        raise PlanError(
            f"The header of {file} has a blank name, or one twice: "
            f"{', '.join(map(repr, columns)):.300}. Give each column its own name, or read the "
            "file with header=False."
        )
    return columns


def _check(file: File, raw: bytes) -> None:
    """Raise PlanError unless these bytes may be the first record, or its beginning."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or raw.startswith(_BZIP2):
        raise PlanError(
            f"{file} is not text in UTF-8: it is compressed, or in another encoding. Unpack or "
            "convert it."
        )
    outside = b"".join(raw.split(_QUOTE)[::2])
    if file.format is Format.CSV and b"\r" in outside.replace(b"\r\n", b""):
        raise PlanError(
            f"Lines of {file} end with CR alone, so it has only one line. Convert them to end with "
            "LF or CRLF."
        )
