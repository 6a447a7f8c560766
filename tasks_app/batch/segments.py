"""Segments: a file is cut at borders of records, in one pass, with a checksum for each piece."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks_app.batch.files import BLOCK, QUOTE, body_of
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Kind, Partition
from tasks_app.domain.partition.sources import File, Format

_LINE_END = b"\n"


def segments(file: File, parts: int) -> list[Partition]:
    """Return up to ``parts`` segments of about as many bytes; fewer where records are large.

    Raises:
        PlanError: there is no such file, or a quote in it is opened and never closed.
    """
    low, high = body_of(file)
    targets = [low + part * (high - low) // parts for part in range(1, parts)]
    cutter = _Cutter(file, low, targets)
    with Path(file.path).open("rb") as stream:
        stream.seek(low)
        while block := stream.read(BLOCK):
            cutter.feed(block)
    return cutter.end()


@dataclass(slots=True)
class _Cutter:
    """Sees a file's bytes in order."""

    file: File
    low: int
    """Where the open segment begins."""
    targets: list[int]
    """Where to cut, at the next border of records; ascending."""
    at: int = 0
    """How far the file was seen."""
    quotes: int = 0
    """Of the file so far; while their number is odd, a line's end is part of a field."""
    records: int = 0
    last: bytes = b""
    seen: Any = field(default_factory=hashlib.sha256)
    made: list[Partition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.at = self.low

    def feed(self, block: bytes) -> None:
        """See the next bytes."""
        while self.targets and (border := self._border(block)) is not None:
            self._take(block[:border])
            self._close()
            block = block[border:]
        self._take(block)

    def end(self) -> list[Partition]:
        """Return the segments."""
        if self.quotes % 2:
            raise PlanError(
                f"{self.file}: a quote is opened and never closed, so that nobody knows where its "
                "records end. Write quotes within fields twice, as COPY does."
            )
        if self.last not in (b"", _LINE_END):
            self.records += 1
        if self.at > self.low:
            self._close()
        return self.made

    def _border(self, block: bytes) -> int | None:
        """Return behind which byte of the block the first record ends at the target or later."""
        place = max(0, self.targets[0] - self.at - 1)
        counted, quotes = 0, self.quotes
        while (found := block.find(_LINE_END, place)) >= 0:
            if self.file.format is Format.CSV:
                quotes += block.count(QUOTE, counted, found)
                counted = found
            if quotes % 2 == 0:
                return found + 1
            place = found + 1
        return None

    def _take(self, piece: bytes) -> None:
        if not piece:
            return
        if self.file.format is Format.CSV:
            outside = piece.split(QUOTE)[self.quotes % 2 :: 2]
            self.records += sum(part.count(_LINE_END) for part in outside)
            self.quotes += piece.count(QUOTE)
        else:
            self.records += piece.count(_LINE_END)
        self.seen.update(piece)
        self.at += len(piece)
        self.last = piece[-1:]

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
