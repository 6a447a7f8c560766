"""How many partitions there are, and where a range of keys is cut."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, ranges_between
from tasks_app.domain.partition.records import Partition, PartitionKind


class CutPoint(NamedTuple):
    key: Key
    before: int  # the number of rows with smaller keys


def even_cuts(points: Iterable[tuple[Any, float]], parts: int) -> list[CutPoint]:
    """Return up to ``parts`` - 1 cuts with about the same weight between them.

    ``points`` are keys and the number of rows that each stands for, in any order. A key is never
    split.
    """
    ordered = sorted(points, key=lambda point: point[0])
    whole = sum(weight for _, weight in ordered)
    cuts: list[CutPoint] = []
    passed = 0.0
    for (key, weight), (following, _) in pairwise(ordered):
        passed += weight
        if key != following and passed * parts >= whole * (len(cuts) + 1) and len(cuts) < parts - 1:
            cuts.append(CutPoint(following, round(passed)))
    return cuts


def ranges_of_cuts(
    cuts: Sequence[CutPoint], rows: int | None, *, source: str | None = None, first: int = 1
) -> list[Partition]:
    """Return the partitions that the cuts make of all keys, numbered from ``first`` on."""
    edges = [0, *(cut.before for cut in cuts), rows or 0]
    ranges = zip(ranges_between(cut.key for cut in cuts), pairwise(edges), strict=True)
    sizes = [(span, None if rows is None else max(0, high - low)) for span, (low, high) in ranges]
    return [
        Partition(number, range=span, source=source, rows=size)
        for number, (span, size) in enumerate(sizes, first)
    ]


def partition_of_nulls(number: int, source: str | None = None) -> Partition:
    """Return a partition of only the rows without a key, which an index scan does not find."""
    return Partition(number, PartitionKind.RANGE, owns_null=True, source=source)


MOST = 10_000  # partitions of a program: more would cost more than they even out
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KB|MB|GB)?\s*$", re.IGNORECASE)
_BYTES = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}


@dataclass(frozen=True, slots=True)
class Amount:
    """The wanted number of partitions, by exactly one of the first three fields.

    Raises PlanError: none or several are given, or a number is out of range.
    """

    parts: int | None = None
    rows: int | None = None  # in each partition, approximately
    size: int | str | None = None  # of each partition, approximately: bytes, or text like 64MB
    over: int = 1  # a factor for more partitions, so that fast workers can take several

    def __post_init__(self) -> None:
        given = [each for each in (self.parts, self.rows, self.size) if each is not None]
        if len(given) != 1:
            raise PlanError("Give exactly one of parts, rows and size.")
        for name, value in (("parts", self.parts), ("rows", self.rows), ("over", self.over)):
            if value is not None and value < 1:
                raise PlanError(f"{name} is {value}. Use 1 or more.")
        if self.size is not None:
            parse_size(self.size)

    def number_for(self, rows: int | None, size_bytes: int | None) -> int:
        """Return the number of partitions of a source, 1 .. ``MOST``; raises PlanError."""
        if self.parts is not None:
            wanted = self.parts
        elif self.rows is not None:
            wanted = _parts_of(rows, self.rows, "rows")
        else:
            wanted = _parts_of(size_bytes, parse_size(self.size or 0), "bytes")
        return max(1, min(MOST, wanted * self.over))


def parse_size(size: int | str) -> int:
    found = _SIZE.match(str(size))
    number = math.floor(float(found[1]) * _BYTES[(found[2] or "").upper()]) if found else 0
    if number < 1:
        raise PlanError(f"{size!r} is not a size. Write bytes, or text like 64MB.")
    return number


def _parts_of(whole: int | None, each: int, what: str) -> int:
    if whole is None:
        raise PlanError(f"The number of {what} is unknown. Give parts instead.")
    return math.ceil(whole / each)
