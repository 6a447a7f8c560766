"""Segments: a file is cut at borders of records, in one pass, with a checksum for each piece."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks_app.batch.file_records import is_blank, lines_of, look
from tasks_app.batch.files import body_of
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Kind, Partition
from tasks_app.domain.partition.sources import File


def segments(file: File, parts: int) -> list[Partition]:
    """Return up to ``parts`` segments of about as many bytes; fewer where records are large.

    Raises:
        PlanError: there is no such file, it is no text, or a quote in it is never closed.
    """
    low, high = body_of(file)
    cutter = _Cutter(file, low, [low + part * (high - low) // parts for part in range(1, parts)])
    is_narrow, is_new, ends = look(file).is_narrow, True, True
    with Path(file.path).open("rb") as stream:
        stream.seek(low)
        for line, ends in lines_of(stream, file.format):
            counts = ends and (is_narrow or not (is_new and is_blank(line)))
            cutter.take(line, records=counts, may_cut=ends)
            is_new = ends
    if not ends:
        raise PlanError(
            f"{file}: a quote is opened and never closed, so that nobody knows where its "
            "records end. Write quotes within fields twice, as COPY does."
        )
    return cutter.end()


@dataclass(slots=True)
class _Cutter:
    """Sees a file's lines in order."""

    file: File
    low: int
    """Where the open segment begins."""
    targets: list[int]
    """Where to cut, at the next border of records; ascending."""
    at: int = 0
    """How far the file was seen."""
    records: int = 0
    seen: Any = field(default_factory=hashlib.sha256)
    made: list[Partition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.at = self.low

    def take(self, line: bytes, *, records: int, may_cut: bool) -> None:
        """Take a line, with which so many records end."""
        self.seen.update(line)
        self.at += len(line)
        self.records += records
        if may_cut and self.targets and self.at >= self.targets[0]:
            self._close()

    def end(self) -> list[Partition]:
        """Return the segments."""
        if self.at > self.low:
            self._close()
        return self.made

    def _close(self) -> None:
        self.made.append(
            Partition(
                len(self.made) + 1,
                Kind.SEGMENT,
                Range(self.low, self.at),
                source=str(self.file),
                checksum=self.seen.hexdigest(),
                rows=self.records,
            )
        )
        self.low, self.records, self.seen = self.at, 0, hashlib.sha256()
        self.targets = [target for target in self.targets if target > self.at]
