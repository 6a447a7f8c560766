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
    """How a row belongs to a partition."""

    RANGE = "range"  # its key is in the range
    VALUES = "values"  # its key is one of the values
    HASH = "hash"  # the hash of its key, modulo `modulus`, is in the range
    SEGMENT = "segment"  # it begins within these bytes of the file
    MARKED = "marked"  # all partitions read the same rows; the first one to take a row marks it


class Status(StrEnum):
    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"  # between two chunks; it continues from its checkpoint
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    COMPENSATED = "COMPENSATED"  # it failed, and its commits were undone
    ABANDONED = "ABANDONED"


@dataclass(frozen=True, slots=True)
class Partition:
    """The rows of one partition."""

    number: int
    kind: PartitionKind = PartitionKind.RANGE
    range: Range | None = None  # of keys, hashes or bytes; None: no key at all, or values
    values: tuple[Key, ...] = ()
    owns_null: bool = False  # it also owns the rows without a key
    column: str | None = None  # of the key, or a hash's bucket; None: the program's
    modulus: int | None = None  # the number of buckets of a hash
    source: str | None = None  # table or file; None: the program's. Ranges compare within a source
    view: str | None = None  # through which its rows are read
    checksum: str | None = None  # SHA-256 of a segment, in hexadecimal
    rows: int | None = None  # an estimate; None: not counted

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(map(in_utc, self.values)))

    def __str__(self) -> str:
        words = {PartitionKind.HASH: f"hash % {self.modulus}", PartitionKind.SEGMENT: "byte"}
        most, owned = 5, ""
        if self.kind is PartitionKind.MARKED:
            owned = "what it takes first"
        elif self.kind is PartitionKind.VALUES:
            owned = ", ".join(map(quoted_key, self.values[:most]))
            owned += ", …" * (len(self.values) > most)
        elif self.range is not None:
            owned = self.range.words(words.get(self.kind, "key"))
        rows = " or ".join(filter(None, [owned, "NULL" * self.owns_null])) or "nothing"
        source = f" of {self.source}" if self.source else ""
        return f"partition {self.number} ({rows}{source})"


class Extent(NamedTuple):
    least: Key | None = None  # both None: no row has a key that a bound can name
    most: Key | None = None
    nulls: bool = False  # there are rows without a key
    below: bool = False  # keys that no bound can name, like -infinity; an open range has them
    above: bool = False

    @property
    def has_keys(self) -> bool:
        return self.least is not None or self.below or self.above


class PhysicalRange(NamedTuple):
    name: str
    range: Range


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan is checked against."""

    key_type: KeyType
    extents: Mapping[str | None, Extent] = field(default_factory=dict)  # by source; None: the table
    values: Mapping[Key, int] | None = None  # rows by key; None: not counted
    physical: tuple[PhysicalRange, ...] = ()  # set if a partition must not span two of them
    at_least: int = 0  # the smallest number of partitions; one, unless there is no row


@dataclass(frozen=True, slots=True)
class Plan:
    """Partitions that together own every row."""

    method: str
    key_type: KeyType
    partitions: tuple[Partition, ...]
    rows: int | None = None  # None: the planner does not know
    seconds: float = 0.0  # that the planner took
    warnings: tuple[str, ...] = ()


class RowCounts(NamedTuple):
    read: int = 0
    written: int = 0
    skipped: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class StoredPartition:
    id: int
    program: str
    partition: Partition
    key_type: KeyType
    batch_id: int | None  # None: people maintain it, and no job runs it
    step: str | None
    status: Status
    checkpoint: Any  # of the last chunk; None: no chunk was committed
    counts: RowCounts
    task_id: int | None
    started_at: datetime | None  # of its first run
    changed_at: datetime
    ended_at: datetime | None
    error: str | None

    @property
    def is_untouched(self) -> bool:
        return "after" not in (self.checkpoint or {})


_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_WORD = r'("(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)'
_NAME = re.compile(rf"(?:{_WORD}\.)?{_WORD}")


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view, and the column that it is split by; names as in the catalog."""

    name: str
    key: str = "id"
    schema: str | None = None  # None: the first one in the search path

    def __str__(self) -> str:
        names = (self.schema, self.name) if self.schema else (self.name,)
        return ".".join(
            name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
            for name in names
        )

    @classmethod
    def named(cls, name: str, key: str) -> Self:
        """Return the table of a name in SQL, with or without schema and quotes; or PlanError."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise PlanError(f"{name!r} is not the name of a table. Quote it as in SQL.")
        words = [word for word in found.groups() if word is not None]
        parts = [w[1:-1].replace('""', '"') if w.startswith('"') else w.lower() for w in words]
        return cls(parts[-1], key, parts[0] if len(parts) > 1 else None)


class Format(StrEnum):
    """The kind of records in a file."""

    CSV = "csv"  # A line, as COPY writes it; it may contain line ends between double quotes
    JSON_LINES = "jsonl"  # one JSON object per line


@dataclass(frozen=True, slots=True)
class File:
    """A file that all workers see under one path; its text is a superset of ASCII, as UTF-8 is."""

    path: str
    format: Format = Format.CSV
    header: bool = True  # the first record of a CSV file names the columns

    def __str__(self) -> str:
        return self.path


Mark = str | int | None


@dataclass(frozen=True, slots=True)
class Marker:
    """A column of the user's table with marks. No mark means "in work": a row lock means that."""

    column: str
    waiting: Mark = None
    done: Mark = "done"
    error: Mark = "error"  # of rows that were left out
