"""Splits that people give: lists and ranges of keys, rows of ``task_partition``; and views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from tasks_app.batch.planners import Planner
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import partition_of_nulls
from tasks_app.domain.partition.keys import Key, Range, in_utc
from tasks_app.domain.partition.records import Partition, PartitionKind, Plan, Table
from tasks_app.pool.batch.partitions import find_by_program
from tasks_app.pool.batch.sources.measure import count_nulls, has_nulls, histogram
from tasks_app.pool.batch.sources.predicate import create_view
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
            partitions.append(partition_of_nulls(len(partitions) + 1))
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


@dataclass(frozen=True, slots=True)
class Repository:
    """The rows of a program. They are checked before each start, and never changed.

    Keys that no row owns make the plan wrong, until a row for them is added.
    """

    program: str

    def plan(self, connection: Connection, source: Source) -> Plan:  # noqa: ARG002
        stored = find_by_program(connection, self.program)
        types = sorted({each.key_type for each in stored})
        if not types:
            raise PlanError(
                f"task_partition has no rows of program {self.program}. Insert some, or check the "
                "name."
            )
        if len(types) > 1:
            raise PlanError(
                f"Partitions of {self.program} have keys of several types: {', '.join(types)}. "
                "Give all the type of the key."
            )
        partitions = tuple(each.partition for each in stored)
        rows = [each.rows for each in partitions if each.rows is not None]
        total = sum(rows) if len(rows) == len(partitions) else None
        return Plan("repository", types[0], partitions, total)


@dataclass(frozen=True, slots=True)
class Views:
    """The plan of another planner, with a view for each partition: for programs that know no keys.

    The views hold the bounds of the day on which they were made. They are dropped
    when their step is done; a plan of other partitions makes others.
    """

    inner: Planner
    prefix: str  # ``orders_part`` makes the view ``orders_part_1``. Existing views are replaced.
    schema: str | None = None  # None: the first of the search path

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split as the other planner does; create the views in the caller's transaction."""
        plan = self.inner.plan(connection, source)
        partitions = tuple(self._view(connection, source, plan, each) for each in plan.partitions)
        return replace(plan, method=f"views, {plan.method}", partitions=partitions)

    def _view(
        self, connection: Connection, source: Source, plan: Plan, partition: Partition
    ) -> Partition:
        if partition.kind in (PartitionKind.SEGMENT, PartitionKind.MARKED):
            raise PlanError(f"There is no view of {partition}. Plan ranges, values or hashes.")
        view = Table(f"{self.prefix}_{partition.number}", source.key, self.schema)
        create_view(connection, source, partition, plan.key_type, view)
        return replace(partition, view=str(view))
