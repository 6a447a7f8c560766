"""Indicator: instances that take rows as they come, and mark them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import Connection

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.amount import Amount
from tasks_app.domain.partition.records import Kind, Partition, Plan
from tasks_app.domain.partition.sources import Marker, Table
from tasks_app.pool.batch.relation import Source, find


@dataclass(frozen=True, slots=True)
class Indicator(Amount):
    """Partitions without bounds: whoever is free takes the next rows, so nobody is left with more.

    Each row is written once more for it. The key must be unique and never NULL.
    """

    marker: Marker | None = None
    """None: the marks stand beside the table, where ``marks.fill`` wrote them before."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Say how many instances there are; another number is no other plan.

        Raises:
            PlanError: the source is no table.
        """
        began = time.monotonic()
        if not isinstance(source, Table):
            raise PlanError(f"Rows of {source} cannot be marked. Name a table.")
        relation = find(connection, source)
        number = self.number_for(relation.rows, relation.size_bytes)
        partitions = tuple(Partition(each, Kind.MARKED) for each in range(1, number + 1))
        method = "indicator" if self.marker else "indicator beside"
        spent = time.monotonic() - began
        return Plan(method, relation.key_type, partitions, relation.rows, spent)
