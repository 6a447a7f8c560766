"""Which reader a partition is read with."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.file_reader import SegmentReader
from tasks_app.batch.mark_reader import MarkReader
from tasks_app.batch.planners.flat_file import Extract
from tasks_app.batch.planners.indicator import Indicator
from tasks_app.batch.reader import NoRows, Reader
from tasks_app.batch.step import Step
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Kind, StoredPartition
from tasks_app.domain.partition.sources import File, Table
from tasks_app.pool.batch.pages import pages_of
from tasks_app.pool.batch.relation import Query


def reader_of(
    connection: Connection,
    step: Step,
    params: Any,
    stored: StoredPartition,
    until: list[str] | None = None,
) -> Reader:
    """Return the reader of one partition; ``until`` is where an earlier reader of it ended.

    Raises:
        PlanError: the source is not there any more, its rows have no order, or nobody can read it.
    """
    source, partition = step.source_of(params), stored.partition
    planner = step.planner_of(params)
    match source:
        case None:
            return NoRows()
        case File():
            return SegmentReader(source, partition)
        case Table() | Query() if isinstance(planner, Extract):
            return SegmentReader(planner.file, partition)
        case Table() if partition.kind is Kind.MARKED:
            marker = planner.marker if isinstance(planner, Indicator) else None
            return MarkReader(source, marker, stored.program, partition.number)
        case Table() | Query():
            return pages_of(connection, source, partition, step.page_by, until)
        case _:
            raise PlanError(
                f"The source of step {step.name} is a {type(source).__name__}. "
                "Give a Table, a Query or a File, or a function of the parameters that returns one."
            )
