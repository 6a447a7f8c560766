"""Which reader a partition is read with."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.batch.reader import NoRows, Reader
from tasks_app.batch.step import Step
from tasks_app.domain.errors import InvalidJobError
from tasks_app.domain.partition.records import Partition
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch.pages import pages_of
from tasks_app.pool.batch.relation import Query


def reader_of(connection: Connection, step: Step, source: object, partition: Partition) -> Reader:
    """Return the reader of one partition.

    Raises:
        InvalidJobError: the source is of a kind that nobody can read.
        PlanError: it is not there any more, or its rows have no order.
    """
    match source:
        case None:
            return NoRows()
        case Table() | Query():
            return pages_of(connection, source, partition, step.page_by)
        case _:
            raise InvalidJobError(
                f"The source of step {step.name} is a {type(source).__name__}. "
                "Give a Table, a Query or a File, or a function of the parameters that returns one."
            )
