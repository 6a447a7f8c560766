"""Partitions by given lists of values or given ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import partition_of_nulls
from tasks_app.domain.partition.keys import Key, Range, in_utc
from tasks_app.domain.partition.records import Partition, PartitionKind, Plan
from tasks_app.pool.batch.sources.measure import count_nulls, has_nulls, histogram
from tasks_app.pool.batch.sources.relation import Source, find


@dataclass(frozen=True, slots=True)
class KeyList:
    """Values like the codes of branches, each listed for one partition; None is NULL.

    A value of the table that no list has makes the plan wrong, unless ``auto_assign`` is set.
    """

    lists: Mapping[int, Sequence[Key | None]]  # values by number of partition
    auto_assign: bool = False
    """Unlisted values go to the partition with the fewest rows, those of most rows first."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split; reads the keys of all rows."""
        if not self.lists:
            raise PlanError("There are no lists of values. Give one for each partition.")
        relation = find(connection, source)
        found = histogram(connection, relation)
        nulls = count_nulls(connection, relation)
        counted: dict[Key | None, int] = dict(found.items())
        if nulls:
            counted[None] = nulls
        lists = {number: list(map(in_utc, values)) for number, values in self.lists.items()}
        added = _assign(lists, counted) if self.auto_assign else []
        partitions = tuple(_listed(no, values, counted) for no, values in sorted(lists.items()))
        words = ", ".join("NULL" if value is None else str(value) for value in added)
        warnings = (f"Assigned automatically: {words:.1000}.",) if added else ()
        total = sum(counted.values())
        return Plan("key list", relation.key_type, partitions, total, warnings=warnings)


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Given ranges ``low <= key < high``; None is no bound. They are numbered from 1.

    Rows without a key get a partition of their own.
    """

    ranges: Sequence[tuple[Key | None, Key | None]]

    def plan(self, connection: Connection, source: Source) -> Plan:
        relation = find(connection, source)
        spans = [Range(low, high) for low, high in self.ranges]
        partitions = [Partition(number, range=span) for number, span in enumerate(spans, 1)]
        if has_nulls(connection, relation):
            partitions.append(partition_of_nulls(len(partitions) + 1, None))
        return Plan("key ranges", relation.key_type, tuple(partitions), relation.rows)


def _assign(
    lists: dict[int, list[Key | None]], counted: Mapping[Key | None, int]
) -> list[Key | None]:
    known = {value for values in lists.values() for value in values}
    loads = {number: _rows(values, counted) for number, values in lists.items()}
    added = sorted(set(counted) - known, key=lambda value: (-counted[value], str(value)))
    for value in added:
        number = min(loads, key=lambda each: (loads[each], each))
        lists[number].append(value)
        loads[number] += counted[value]
    return added


def _listed(
    number: int, values: Sequence[Key | None], counted: Mapping[Key | None, int]
) -> Partition:
    own = tuple(sorted((value for value in values if value is not None), key=str))
    rows, nulls = _rows(values, counted), None in values
    return Partition(number, PartitionKind.VALUES, values=own, owns_null=nulls, rows=rows)


def _rows(values: Iterable[Key | None], counted: Mapping[Key | None, int]) -> int:
    return sum(counted.get(value, 0) for value in values)
