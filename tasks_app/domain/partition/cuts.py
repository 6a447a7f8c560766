"""Where a range of keys is cut, and how many rows lie between the cuts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tasks_app.domain.partition.keys import Key
from tasks_app.domain.partition.ranges import between
from tasks_app.domain.partition.records import Partition, PartitionKind


class CutPoint(NamedTuple):
    """A key at which a partition begins."""

    key: Key
    before: int
    """How many rows have smaller keys."""


def even(points: Iterable[tuple[Any, float]], parts: int) -> list[CutPoint]:
    """Return up to ``parts`` - 1 cuts with about the same weight between them.

    ``points`` are keys and how many rows each stands for, in any order. A key is never divided.
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


def ranges(
    cuts: Sequence[CutPoint], rows: int | None, *, source: str | None = None, first: int = 1
) -> list[Partition]:
    """Return the partitions that cuts make of all keys, numbered from ``first`` on."""
    edges = [0, *(cut.before for cut in cuts), rows or 0]
    return [
        Partition(
            number,
            range=span,
            source=source,
            rows=None if rows is None else max(0, high - low),
        )
        for number, (span, (low, high)) in enumerate(
            zip(between(cut.key for cut in cuts), pairwise(edges), strict=True), first
        )
    ]


def of_nulls(number: int, rows: int | None, source: str | None = None) -> Partition:
    """Return a partition of the rows without a key, and no others.

    They are apart because an index scan of a range of keys does not find them.
    """
    return Partition(number, PartitionKind.RANGE, owns_null=True, source=source, rows=rows)
