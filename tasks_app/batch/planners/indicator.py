"""Partitions that take the next free rows, and mark them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.records import Marker, Partition, PartitionKind, Plan, Table
from tasks_app.pool.batch.sources.relation import Source, find


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
