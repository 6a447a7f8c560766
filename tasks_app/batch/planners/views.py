"""Partitions that each have a view of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Connection

from tasks_app.batch.planners import Planner
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Partition, PartitionKind, Plan, Table
from tasks_app.pool.batch.sources.predicate import create_view
from tasks_app.pool.batch.sources.relation import Source


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
