"""What a batch reads, and the partitions that a planner makes of it and the repository keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, KeyType, Range, in_utc, quoted_key


class PartitionKind(StrEnum):
    """How a row is known to belong to a partition."""

    RANGE = "range"
    """Its key lies in the range."""
    VALUES = "values"
    """Its key is one of the values."""
    HASH = "hash"
    """The hash of its key, modulo ``modulus``, lies in the range."""
    SEGMENT = "segment"
    """It begins within these bytes of the file."""
    MARKED = "marked"
    """The first partition that takes it marks it. All partitions read the same rows."""


class Status(StrEnum):
    """The status of a partition."""

    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    """Between two chunks; it goes on from its checkpoint."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    COMPENSATED = "COMPENSATED"
    """It had failed, and what it had done was undone."""
    ABANDONED = "ABANDONED"


@dataclass(frozen=True, slots=True)
class Partition:
    """Which rows one instance of a program processes."""

    number: int
    kind: PartitionKind = PartitionKind.RANGE
    range: Range | None = None
    """The range of keys, hashes or bytes; None: no key at all, or values."""
    values: tuple[Key, ...] = ()
    owns_null: bool = False
    """Rows without a key are its own, too."""
    column: str | None = None
    """The column of the key; None: the program's. For a hash the column of the bucket."""
    modulus: int | None = None
    """The number of buckets of a hash."""
    source: str | None = None
    """The table or file of its rows; None: the program's. Ranges are compared within one source."""
    view: str | None = None
    """The view that its rows are read through, if one was made."""
    checksum: str | None = None
    """SHA-256 of a segment, in hexadecimal."""
    rows: int | None = None
    """An estimate; None: not counted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(map(in_utc, self.values)))

    def __str__(self) -> str:
        owned = [*self._owned(), *(["NULL"] if self.owns_null else [])]
        within = f" of {self.source}" if self.source else ""
        return f"partition {self.number} ({' or '.join(owned) or 'nothing'}{within})"

    def _owned(self) -> list[str]:
        words = {PartitionKind.HASH: f"hash % {self.modulus}", PartitionKind.SEGMENT: "byte"}
        if self.kind is PartitionKind.MARKED:
            return ["what it takes first"]
        if self.kind is PartitionKind.VALUES:
            shown = ", ".join(quoted_key(value) for value in self.values[:_SHOWN])
            return [shown + (", …" if len(self.values) > _SHOWN else "")] if shown else []
        if self.range is None:
            return []
        return [self.range.words(words.get(self.kind, "key"))]


_SHOWN = 5


class Extent(NamedTuple):
    """Which keys a source has."""

    least: Key | None = None
    most: Key | None = None
    """Both None: it has no row with a key that a bound can name."""
    nulls: bool = False
    """There are rows without a key."""
    below: bool = False
    above: bool = False
    """There are keys that no bound can name, like infinity; a range without a bound has them."""

    @property
    def has_keys(self) -> bool:
        return self.least is not None or self.below or self.above


class PhysicalRange(NamedTuple):
    """A partition of the database's own, and the keys that it holds."""

    name: str
    range: Range


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan is checked against."""

    key_type: KeyType
    extents: Mapping[str | None, Extent] = field(default_factory=dict)
    """By source; None is the program's own table. A source that is not named is not covered."""
    values: Mapping[Key, int] | None = None
    """Each key, and how many rows have it; None: not counted."""
    physical: tuple[PhysicalRange, ...] = ()
    """The database's own partitions, where a partition must not span two."""
    at_least: int = 0
    """The smallest number of partitions; one, unless there is nothing to own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Partitions that together own every row, and what it took to find them."""

    method: str
    key_type: KeyType
    partitions: tuple[Partition, ...]
    rows: int | None = None
    """How many there are; None: the planner does not know."""
    seconds: float = 0.0
    """How long the planner took."""
    warnings: tuple[str, ...] = ()


class RowCounts(NamedTuple):
    """What became of rows."""

    read: int = 0
    written: int = 0
    skipped: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A partition in the repository."""

    id: int
    program: str
    partition: Partition
    key_type: KeyType
    batch_id: int | None
    """None: people maintain it, and no job runs it."""
    step: str | None
    status: Status
    checkpoint: Any
    """What the last chunk left; None: no chunk was committed."""
    counts: RowCounts
    task_id: int | None
    started_at: datetime | None
    """When its first run started."""
    changed_at: datetime
    ended_at: datetime | None
    error: str | None

    @property
    def is_untouched(self) -> bool:
        """Whether no chunk of it was committed."""
        return "after" not in (self.checkpoint or {})


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
