"""Check a plan against what the source holds now. A wrong plan starts nothing."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.batch.files.segments import body_of, file_of
from tasks_app.domain.partition.check import check
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.problems import Problem, WrongPlanError
from tasks_app.domain.partition.records import Extent, Facts, PartitionKind, Plan
from tasks_app.domain.partition.sources import File
from tasks_app.pool.batch.sources.plan_facts import gather
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
    values, all keys are read.

    Raises:
        PlanError: the source does not exist.
    """
    segment = next((each for each in plan.partitions if each.kind is PartitionKind.SEGMENT), None)
    if isinstance(source, File):
        return check(plan, _facts_of(source, at_least))
    if segment is not None:  # the table was extracted
        return check(plan, _facts_of(file_of(source, segment), at_least))
    return check(plan, gather(connection, source, plan, aligned=aligned, at_least=at_least))


def validate(
    connection: Connection,
    source: Source | File,
    plan: Plan,
    *,
    aligned: bool = False,
    at_least: int = 0,
) -> Plan:
    """Return the plan.

    Raises:
        WrongPlanError: it has problems.
        PlanError: the source does not exist.
    """
    found = problems(connection, source, plan, aligned=aligned, at_least=at_least)
    if found:
        raise WrongPlanError(found)
    return plan


def _facts_of(file: File, at_least: int) -> Facts:
    low, high = body_of(file)
    extent = Extent(low, high - 1) if high > low else Extent()
    return Facts(KeyType.INTEGER, {str(file): extent}, at_least=at_least)
