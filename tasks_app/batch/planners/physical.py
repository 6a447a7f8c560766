"""One or more partitions for each of the database's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Connection

from tasks_app.batch.planners.even import Even
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import Amount, partition_of_nulls, ranges_of_cuts
from tasks_app.domain.partition.records import Partition, Plan, Table
from tasks_app.pool.batch.sources.measure import has_nulls, is_divided, leaves
from tasks_app.pool.batch.sources.relation import Source, find

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
        partitions: list[Partition] = []
        total = 0
        for table in leaves(connection, relation):
            own = find(connection, table)
            cuts, rows, _ = even.cut(connection, own)
            first = len(partitions) + 1
            parts = ranges_of_cuts(cuts, rows, source=str(table), first=first)
            if has_nulls(connection, own):
                if len(parts) == 1:
                    parts = [replace(parts[0], owns_null=True)]
                else:
                    parts.append(partition_of_nulls(first + len(parts), None, str(table)))
            partitions += parts
            total += rows
        return Plan("physical", relation.key_type, tuple(partitions), total)
