"""Rows as CSV, or as a JSON object a line, written while they are read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from tasks_app.pool.pages.tasks import TaskLine

_ROW = TypeAdapter(TaskLine)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def as_csv(pages: Iterable[list[TaskLine]]) -> Iterator[bytes]:
    """Yield a header, and a line for each row."""
    yield _lines([list(TaskLine.__dataclass_fields__)])
    for page in pages:
        yield _lines([[_cell(value) for value in asdict(row).values()] for row in page])


def as_json_lines(pages: Iterable[list[TaskLine]]) -> Iterator[bytes]:
    for page in pages:
        yield b"".join(_ROW.dump_json(row) + b"\n" for row in page)


def _lines(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


FORMATS = {
    "csv": (as_csv, "text/csv; charset=utf-8"),
    "jsonl": (as_json_lines, "application/jsonl"),
}
