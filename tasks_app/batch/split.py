"""A step's source becomes partitions that own each row once, or is refused."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.flat_file import Extract, FlatFile
from tasks_app.batch.step import Step
from tasks_app.batch.validate import validate
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Partition, PartitionKind, Plan
from tasks_app.domain.partition.sources import File
from tasks_app.pool.batch.sources.pages import pages_of

ROWS, BYTES = 50_000, "16MB"
"""About the size of a partition when no planner is given."""
WHOLE = Plan("whole", KeyType.INTEGER, (Partition(1, range=Range()),))
"""The plan of a step that reads nothing."""


def split(connection: Connection, step: Step, params: Any) -> Plan:
    """Return the checked plan of a step; only its planner may write.

    Raises:
        PlanError: the plan is wrong, or cannot be made.
    """
    source = step.source_of(params)
    if source is None:
        return WHOLE
    planner = step.planner_of(params) or (
        FlatFile(size=BYTES) if isinstance(source, File) else Even(rows=ROWS)
    )
    plan: Plan = planner.plan(connection, source)
    if step.at_end and any(each.kind is PartitionKind.MARKED for each in plan.partitions):
        raise PlanError(
            f"Partitions of step {step.name} take rows that no other has in hand, and would wait "
            'for each other\'s end. Leave commit="end" away.'
        )
    judged = planner.file if isinstance(planner, Extract) else source
    validate(connection, judged, plan, aligned=step.aligned, at_least=step.at_least)
    _check_order(connection, step, source, plan)
    return plan


def _check_order(connection: Connection, step: Step, source: Any, plan: Plan) -> None:
    """Refuse a plan of which some partitions cannot be read in an order."""
    kinds = {(each.kind, each.owns_null): each for each in plan.partitions}
    for each in kinds.values():
        if each.kind not in (PartitionKind.SEGMENT, PartitionKind.MARKED):
            pages_of(connection, source, each, step.page_by)
