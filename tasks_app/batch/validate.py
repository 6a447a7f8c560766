"""Splits a step's source, and checks the plan against what the source holds now."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.files.segments import body_of, file_of
from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.flat_file import Extract, FlatFile
from tasks_app.batch.step import Step
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import Problem, WrongPlanError, check_plan
from tasks_app.domain.partition.keys import KeyType, Range
from tasks_app.domain.partition.records import (
    Extent,
    Facts,
    File,
    Partition,
    PartitionKind,
    Plan,
    Table,
)
from tasks_app.pool.batch.sources.measure import gather_facts
from tasks_app.pool.batch.sources.pages import pages_of
from tasks_app.pool.batch.sources.relation import Source, find

BIG_BYTES = 8 * 1024 * 1024  # of a table that is better not read by each partition
WHOLE = Plan("whole", KeyType.INTEGER, (Partition(1, range=Range()),))  # of steps that read nothing


def split(connection: Connection, step: Step, params: Any) -> Plan:
    """Return the checked plan of a step; only its planner may write.

    Without a planner a partition has about 50,000 rows, or 16 MB of a file. Raises PlanError if the
    plan is wrong, or cannot be made.
    """
    source = step.source_of(params)
    if source is None:
        return WHOLE
    planner = step.planner_of(params) or (
        FlatFile(size="16MB") if isinstance(source, File) else Even(rows=50_000)
    )
    began = time.monotonic()
    plan: Plan = planner.plan(connection, source)
    warnings = (*plan.warnings, *_unindexed(connection, source, plan))
    plan = replace(plan, seconds=time.monotonic() - began, warnings=warnings)
    if step.at_end and any(each.kind is PartitionKind.MARKED for each in plan.partitions):
        raise PlanError(
            f"Partitions of step {step.name} share their rows, and with one commit each would wait "
            'for the others to end. Remove commit="end".'
        )
    checked = planner.file if isinstance(planner, Extract) else source
    validate(connection, checked, plan, aligned=step.aligned, at_least=step.at_least)
    # Each kind of partition must be readable in an order.
    for each in {(each.kind, each.owns_null): each for each in plan.partitions}.values():
        if each.kind not in (PartitionKind.SEGMENT, PartitionKind.MARKED):
            pages_of(connection, source, each, step.page_by)
    return plan


def _unindexed(connection: Connection, source: Source | File, plan: Plan) -> list[str]:
    """Warn if each partition would read a big table whole."""
    by_key = {PartitionKind.RANGE, PartitionKind.VALUES}
    if not isinstance(source, Table) or len(plan.partitions) == 1:
        return []
    if not any(each.kind in by_key and each.source is None for each in plan.partitions):
        return []
    found = find(connection, source)
    if found.is_indexed or not found.can_sample or (found.size_bytes or 0) < BIG_BYTES:
        return []
    order = ' COLLATE "C"' if found.key_type is KeyType.TEXT else ""
    create = f"CREATE INDEX CONCURRENTLY ON {source} ({source.key}{order});"
    fact = f"Each partition reads {source} whole, because no index begins with {source.key}."
    return [f"{fact} Create one: {create}"]


def validate(
    connection: Connection,
    source: Source | File,
    plan: Plan,
    *,
    aligned: bool = False,
    at_least: int = 0,
) -> Plan:
    """Return the plan. Raises WrongPlanError if it has ``problems``, PlanError as they do."""
    found = problems(connection, source, plan, aligned=aligned, at_least=at_least)
    if found:
        raise WrongPlanError(found)
    return plan


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
    if not isinstance(source, File) and segment is None:
        facts = gather_facts(connection, source, plan, aligned=aligned, at_least=at_least)
        return check_plan(plan, facts)
    file = source if segment is None else file_of(source, segment)  # a table may be extracted to it
    assert isinstance(file, File)  # noqa: S101  it is no table without segments
    low, high = body_of(file)
    extent = Extent(low, high - 1) if high > low else Extent()
    return check_plan(plan, Facts(KeyType.INTEGER, {str(file): extent}, at_least=at_least))
