"""A step's source is split, and the plan is checked against what the source holds now."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.files.segments import body_of, file_of
from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.flat_file import Extract, FlatFile
from tasks_app.batch.step import Step
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import Problem, WrongPlanError, check_plan
from tasks_app.domain.partition.keys import KeyType, Range
from tasks_app.domain.partition.records import Extent, Facts, File, Partition, PartitionKind, Plan
from tasks_app.pool.batch.sources.measure import gather_facts
from tasks_app.pool.batch.sources.pages import pages_of
from tasks_app.pool.batch.sources.relation import Source


def problems(
    connection: Connection,
    source: Source | File,
    plan: Plan,
    *,
    aligned: bool = False,
    at_least: int = 0,
) -> list[Problem]:
    """Return what is wrong with a plan; empty: each row has exactly one owner.

    ``aligned``: no range may span two of the database's own partitions. ``at_least``: the smallest
    number of partitions. The ends of an indexed key are found at once; without an index, and for
    values, all keys are read. Raises PlanError if the source does not exist.
    """
    segment = next((each for each in plan.partitions if each.kind is PartitionKind.SEGMENT), None)
    if isinstance(source, File):
        return check_plan(plan, _facts_of(source, at_least))
    if segment is not None:  # the table was extracted
        return check_plan(plan, _facts_of(file_of(source, segment), at_least))
    return check_plan(
        plan, gather_facts(connection, source, plan, aligned=aligned, at_least=at_least)
    )


def validate(
    connection: Connection,
    source: Source | File,
    plan: Plan,
    *,
    aligned: bool = False,
    at_least: int = 0,
) -> Plan:
    """Return the plan.

    Raises WrongPlanError if it has problems; PlanError if the source does not exist.
    """
    found = problems(connection, source, plan, aligned=aligned, at_least=at_least)
    if found:
        raise WrongPlanError(found)
    return plan


def _facts_of(file: File, at_least: int) -> Facts:
    low, high = body_of(file)
    extent = Extent(low, high - 1) if high > low else Extent()
    return Facts(KeyType.INTEGER, {str(file): extent}, at_least=at_least)


ROWS, BYTES = 50_000, "16MB"  # about the size of a partition when no planner is given
WHOLE = Plan("whole", KeyType.INTEGER, (Partition(1, range=Range()),))
"""The plan of a step that reads nothing."""


def split(connection: Connection, step: Step, params: Any) -> Plan:
    """Return the checked plan of a step; only its planner may write.

    Raises PlanError if the plan is wrong, or cannot be made.
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
