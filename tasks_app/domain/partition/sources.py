"""What a batch reads: a table with a key, or a file of records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from tasks_app.domain.errors import PlanError

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_WORD = r'("(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)'
_NAME = re.compile(rf"(?:{_WORD}\.)?{_WORD}")


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view, and the column that it is split by; names as the database has them."""

    name: str
    key: str = "id"
    schema: str | None = None
    """None: the first of the search path that has it."""

    def __str__(self) -> str:
        """Return the name as SQL has it: in quotes where it needs them."""
        names = (self.schema, self.name) if self.schema else (self.name,)
        return ".".join(map(_quoted, names))

    @classmethod
    def named(cls, name: str, key: str) -> Self:
        """Return the table of a name in SQL, which may have a schema and quotes.

        Raises:
            PlanError: it is no name.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            raise PlanError(f"{name!r} is no name of a table. Quote it as in SQL.")
        parts = [_unquoted(part) for part in found.groups() if part is not None]
        return cls(parts[-1], key, parts[0] if len(parts) > 1 else None)


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


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _unquoted(word: str) -> str:
    return word[1:-1].replace('""', '"') if word.startswith('"') else word.lower()


Mark = str | int | None


@dataclass(frozen=True, slots=True)
class Marker:
    """A column of the user's own table.

    No mark says that somebody has a row in hand: the lock on it does, and ends with the
    transaction, however that ends.
    """

    column: str
    waiting: Mark = None
    """The mark of rows that nobody has processed."""
    done: Mark = "done"
    error: Mark = "error"
    """The mark of rows that were left out."""
