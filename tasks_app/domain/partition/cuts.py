"""Cuts: where a range of keys is divided, and how many rows lie between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tasks_app.domain.partition.keys import Key
from tasks_app.domain.partition.ranges import between
from tasks_app.domain.partition.records import Kind, Partition


class Cut(NamedTuple):
    """A key at which a partition begins."""

    key: Key
    before: int
    """So many rows have smaller keys."""


def ranges(
    cuts: Sequence[Cut], rows: int | None, *, source: str | None = None, first: int = 1
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

    Apart, because an index that leads to a range of keys leads to none of them.
    """
    return Partition(number, Kind.RANGE, owns_null=True, source=source, rows=rows)
