"""What a batch reads: a table with a key, or a file of records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view, and the column that it is split by; names as the database has them."""

    name: str
    key: str = "id"
    schema: str | None = None
    """None: the first of the search path that has it."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


class Format(StrEnum):
    """What a record of a file is."""

    CSV = "csv"
    """As COPY writes it: a line, unless its end lies between double quotes."""
    JSON_LINES = "jsonl"
    """A line."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that all workers see under one path; its text is a superset of ASCII, as UTF-8 is."""

    path: str
    format: Format = Format.CSV
    header: bool = True
    """The first record of a CSV file names the columns."""

    def __str__(self) -> str:
        return self.path
