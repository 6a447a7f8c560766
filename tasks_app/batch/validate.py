"""Validate: judge a plan by what there is now. A wrong plan starts nothing."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.batch.files import body_of, file_of
from tasks_app.domain.partition.check import check
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.problems import Problem, WrongPlanError
from tasks_app.domain.partition.records import Extent, Facts, Kind, Plan
from tasks_app.domain.partition.sources import File
from tasks_app.pool.batch.plan_facts import gather
from tasks_app.pool.batch.relation import Source


def problems(
    connection: Connection,
    source: Source | File,
    plan: Plan,
    *,
    aligned: bool = False,
    at_least: int = 0,
) -> list[Problem]:
    """Return what is wrong with a plan; nothing: each row has exactly one owner.

    ``aligned``: no range may span two of the database's own partitions. ``at_least``: so many
    partitions there must be. To look at the ends of an indexed key is quick; without an index, and
    for values, all keys are read.

    Raises:
        PlanError: the source is not there.
    """
    segment = next((each for each in plan.partitions if each.kind is Kind.SEGMENT), None)
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
        PlanError: the source is not there.
    """
    found = problems(connection, source, plan, aligned=aligned, at_least=at_least)
    if found:
        raise WrongPlanError(found)
    return plan


def _facts_of(file: File, at_least: int) -> Facts:
    low, high = body_of(file)
    extent = Extent(low, high - 1) if high > low else Extent()
    return Facts(KeyType.INTEGER, {str(file): extent}, at_least=at_least)
