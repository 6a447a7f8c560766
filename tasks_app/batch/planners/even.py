"""Splits by how many partitions there are to be, or how much is in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal, localcontext
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import (
    MOST,
    Amount,
    CutPoint,
    even_cuts,
    partition_of_nulls,
    ranges_of_cuts,
)
from tasks_app.domain.partition.keys import Key, KeyType, Range, quoted_key, ranges_between
from tasks_app.domain.partition.records import (
    Extent,
    Marker,
    Partition,
    PartitionKind,
    Plan,
    Table,
)
from tasks_app.pool.batch.sources.cuts import exact_cuts, points, sampled_cuts
from tasks_app.pool.batch.sources.measure import count, extent, has_nulls, is_divided, leaves
from tasks_app.pool.batch.sources.relation import Relation, Source, by_bucket, find

BIG_BYTES = 256 * 2**20  # larger tables are sampled: to sort their keys takes seconds
SAMPLE_BYTES = 64 * 2**20  # read of them: some 8,000 blocks; their quantiles are off by 0.5%


class How(StrEnum):
    AUTO = "auto"  # exact, or by a sample if the table is big
    EXACT = "exact"  # all keys, in their order
    SAMPLE = "sample"  # some of the table's blocks
    STATISTICS = "statistics"  # what ANALYZE left: about a hundred keys; nothing is read


@dataclass(frozen=True, slots=True)
class Even(Amount):
    """Ranges of keys with about as many rows each; one key is never divided."""

    how: How = How.AUTO

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split by the rows of now; the first and the last range have no outer bound."""
        relation = find(connection, source)
        cuts, rows, how = self.cut(connection, relation)
        partitions = ranges_of_cuts(cuts, rows)
        made, wanted = len(partitions), self.number_for(rows, relation.size_bytes)
        warning = (
            f"{made} partitions instead of {wanted}: some keys have more rows than a partition "
            "should, and one key is never divided. Split by hash, or by a column with more "
            "different values."
        )
        warnings = (warning,) if made < min(wanted, rows) else ()
        if has_nulls(connection, relation):
            partitions.append(partition_of_nulls(made + 1))
        return Plan(f"even, {how}", relation.key_type, tuple(partitions), rows, warnings=warnings)

    def cut(self, connection: Connection, relation: Relation) -> tuple[list[CutPoint], int, How]:
        """Return where to cut, about how many rows have a key, and how that was found."""
        how = self.how
        if how is How.SAMPLE and not relation.can_sample:
            raise PlanError(
                f"{relation.source} cannot be sampled: it is not a table. Do not set `how`."
            )
        if how is How.AUTO:
            is_big = relation.can_sample and (relation.size_bytes or 0) > BIG_BYTES
            how = How.SAMPLE if is_big else How.EXACT
        if how is How.EXACT:
            rows = count(connection, relation)
            parts = self.number_for(rows, relation.size_bytes)
            return exact_cuts(connection, relation, parts, rows), rows, how
        size = relation.size_bytes or 1
        if how is How.STATISTICS:
            found = points(connection, relation)
            if not found and relation.rows != 0:
                raise PlanError(f"There are no statistics of {relation.source}. Run ANALYZE first.")
            parts = self.number_for(relation.rows, size)
            return even_cuts(found, parts), round(sum(weight for _, weight in found)), how
        known = relation.rows
        if known is None and self.rows is not None:
            known = count(connection, relation)
        parts = self.number_for(known, size)
        percent = min(100.0, 100.0 * SAMPLE_BYTES / size)
        return *sampled_cuts(connection, relation, parts, percent), how


ONE = Amount(parts=1)


@dataclass(frozen=True, slots=True)
class Physical:
    """Ranges of keys within each table of a partitioned table; none spans two.

    Each is read from its own table. A table that is added later belongs to no partition, so the
    plan is checked again before each start.
    """

    each: Amount = ONE  # how many for each table

    def plan(self, connection: Connection, source: Source) -> Plan:
        relation = find(connection, source)
        if not (isinstance(source, Table) and is_divided(connection, relation)):
            raise PlanError(f"{source} has no partitions in the database. Split it by Even.")
        even = Even(self.each.parts, self.each.rows, self.each.size, self.each.over)
        partitions, total = list[Partition](), 0
        for table in leaves(connection, relation):
            own = find(connection, table)
            cuts, rows, _ = even.cut(connection, own)
            first = len(partitions) + 1
            parts = ranges_of_cuts(cuts, rows, source=str(table), first=first)
            if has_nulls(connection, own):
                if cuts:
                    parts.append(partition_of_nulls(first + len(parts), str(table)))
                else:
                    parts = [replace(parts[0], owns_null=True)]
            partitions += parts
            total += rows
        return Plan("physical", relation.key_type, tuple(partitions), total)


@dataclass(frozen=True, slots=True)
class Hash(Amount):
    """One partition for each remainder of the key's hash.

    New rows spread as the old ones do. Each partition reads the whole table, unless an index holds
    the bucket: see ``column``.
    """

    column: str | None = None
    """A stored column that holds the bucket by the same modulus: ``add_bucket`` makes one."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split; reads only statistics if the number of partitions is given."""
        relation = find(connection, source)
        rows = relation.rows
        if rows is None or self.rows is not None:
            rows = count(connection, relation)
        modulus = self.number_for(rows, relation.size_bytes)
        hashed = by_bucket(relation, self.column) if self.column else relation
        nulls = has_nulls(connection, hashed)
        partitions = tuple(
            Partition(
                bucket + 1,
                PartitionKind.HASH,
                Range(bucket, bucket + 1),
                owns_null=nulls and bucket == 0,
                column=self.column,
                modulus=modulus,
                rows=rows // modulus,
            )
            for bucket in range(modulus)
        )
        return Plan(f"hash, {modulus}", relation.key_type, partitions, rows)


@dataclass(frozen=True, slots=True)
class Indicator(Amount):
    """Partitions without bounds: a free worker takes the next rows, so all end at the same time.

    Each row is written once more for it. The key must be unique and never NULL.
    """

    marker: Marker | None = None
    """None: the marks are in ``task_marker``, which ``marks.fill`` has filled."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        if not isinstance(source, Table):
            raise PlanError(f"Rows of {source} cannot be marked. Name a table.")
        relation = find(connection, source)
        number = self.number_for(relation.rows, relation.size_bytes)
        partitions = tuple(Partition(each, PartitionKind.MARKED) for each in range(1, number + 1))
        method = "indicator" if self.marker else "indicator beside"
        return Plan(method, relation.key_type, partitions, relation.rows)


_DIGITS = 300_000  # twice what a numeric can have: Python rounds to 28 digits when it calculates


@dataclass(frozen=True, slots=True)
class Fixed:
    """Ranges like 0 .. 999, 1000 .. 1999: reads only both ends; as even as the keys are dense."""

    width: int | Decimal | timedelta
    start: Key | None = None
    """Where one of the ranges begins; None: 0, or the least key if keys are not numbers."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split; the first and the last range have no outer bound."""
        relation = find(connection, source)
        self._check(relation.key_type)
        found = extent(connection, relation)
        with localcontext(prec=_DIGITS):
            spans = ranges_between(list(self._cuts(found)))
        partitions = [Partition(number, range=span) for number, span in enumerate(spans, 1)]
        if found.nulls:
            partitions.append(partition_of_nulls(len(partitions) + 1))
        return Plan(f"fixed, {self.width}", relation.key_type, tuple(partitions), relation.rows)

    def _check(self, key_type: KeyType) -> None:
        wanted: dict[bool, tuple[type, ...]] = {
            key_type.is_time: (timedelta,),
            key_type is KeyType.INTEGER: (int,),
            key_type is KeyType.NUMERIC: (int, Decimal),
        }
        if not isinstance(self.width, wanted.get(True, ())):
            raise PlanError(
                f"Keys of type {key_type} cannot be split into ranges of {self.width!r}. "
                "Give a number for numbers, a timedelta for times; split text by Even or Hash."
            )
        step: Any = self.width
        if step <= type(self.width)(0):
            raise PlanError(f"The width is {self.width}. Use one above 0.")
        if key_type is KeyType.DATE and step % timedelta(days=1):
            raise PlanError(f"The width is {self.width}, but keys are days. Use whole days.")

    def _cuts(self, found: Extent) -> Iterator[Key]:
        least: Any = found.least
        most: Any = found.most
        start: Any = self.start
        step: Any = self.width
        if least is None:
            return
        if start is None:
            start = 0 if isinstance(least, int | Decimal) else least
        passed = _floor(least - start, step)
        number = _floor(most - start, step) - passed
        if number >= MOST:
            many = number + 1 if number < 10**12 else "too many"
            raise PlanError(
                f"Keys from {quoted_key(least)} to {quoted_key(most)} make {many} ranges of "
                f"{self.width}, more than {MOST}. Use a larger width."
            )
        for place in range(1, int(number) + 1):
            yield start + (passed + place) * step


def _floor(span: Any, step: Any) -> Any:
    if isinstance(span, Decimal):  # its own division rounds towards 0
        times, rest = divmod(span, step)
        return times - (rest != 0 and (rest < 0) != (step < 0))
    return span // step
