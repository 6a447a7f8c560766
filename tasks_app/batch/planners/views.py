"""Views: a partition is read through a view of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from tasks_app.batch.planners import Planner
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Kind, Partition, Plan
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch.relation import Source
from tasks_app.pool.batch.views import create


@dataclass(frozen=True, slots=True)
class Views:
    """What another planner makes, each partition with a view, for programs that know of no keys.

    The views hold the bounds of the day on which they were made. ``drop`` of ``pool.batch.views``
    takes them away; a plan of other partitions makes others.
    """

    inner: Planner
    prefix: str
    """Of the views' names: ``orders_part`` makes ``orders_part_1``. Existing ones are replaced."""
    schema: str | None = None
    """None: the first of the search path."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split as the other planner does, and make the views in the caller's transaction.

        Raises:
            PlanError: it cannot be split so, or has no rows that a view could show.
        """
        began = time.monotonic()
        plan = self.inner.plan(connection, source)
        partitions = tuple(self._view(connection, source, plan, each) for each in plan.partitions)
        spent = time.monotonic() - began
        return replace(plan, method=f"views, {plan.method}", partitions=partitions, seconds=spent)

    def _view(
        self, connection: Connection, source: Source, plan: Plan, partition: Partition
    ) -> Partition:
        if partition.kind in (Kind.SEGMENT, Kind.MARKED):
            raise PlanError(f"There is no view of {partition}. Plan ranges, values or hashes.")
        view = Table(f"{self.prefix}_{partition.number}", source.key, self.schema)
        create(connection, source, partition, plan.key_type, view)
        return replace(partition, view=str(view))
