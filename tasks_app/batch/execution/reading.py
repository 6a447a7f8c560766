"""How the rows of a partition are read, whatever they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import Connection

from tasks_app.batch.files.reader import SegmentReader
from tasks_app.batch.planners.flat_file import Extract
from tasks_app.batch.planners.indicator import Indicator
from tasks_app.batch.step import Step
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import PartitionKind, StoredPartition
from tasks_app.domain.partition.sources import File, Marker, Table
from tasks_app.pool.batch.sources import marks
from tasks_app.pool.batch.sources.pages import pages_of
from tasks_app.pool.batch.sources.relation import Query


class Reader(Protocol):
    """Reads a partition, some rows at a time."""

    until: Any
    """Where it ends, as JSON, if that is known when it begins; kept with the checkpoint."""

    def read(self, connection: Connection, after: Any, size: int) -> Sequence[Any]:
        """Return up to ``size`` rows behind a checkpoint."""

    def is_last(self, connection: Connection, rows: Sequence[Any], size: int) -> bool:
        """Whether nothing comes behind these rows, for which ``size`` were asked."""

    def leave_out(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Tell the source that these rows are left out, if it keeps that."""

    def after(self, rows: Sequence[Any]) -> Any:
        """Return the checkpoint behind these rows, as JSON."""

    def name(self, row: Any) -> str:
        """Return the key by which people find the row."""


class NoRows:
    """Reads nothing; the handler of such a step is called once."""

    until = None

    def read(self, _connection: Connection, _after: Any, _size: int) -> Sequence[Any]:
        return ()

    def is_last(self, _connection: Connection, _rows: Sequence[Any], _size: int) -> bool:
        return True

    def leave_out(self, _connection: Connection, _rows: Sequence[Any]) -> None: ...

    def after(self, _rows: Sequence[Any]) -> Any:
        return None

    def name(self, _row: Any) -> str:
        return ""


class MarkReader:
    """Takes rows as they come and marks them; the marks are the only checkpoint."""

    until = None

    def __init__(self, source: Table, marker: Marker | None, program: str, number: int) -> None:
        self._source = source
        self._marker = marker
        """None: the marks stand in a table of ours."""
        self._program = program
        self._number = number

    def read(self, connection: Connection, _after: Any, size: int) -> Sequence[Any]:
        """Take rows that nobody has in hand; a rollback gives them back."""
        if self._marker is None:
            return marks.take_beside(connection, self._program, self._source, size, self._number)
        return marks.take(connection, self._source, self._marker, size)

    def is_last(self, connection: Connection, rows: Sequence[Any], size: int) -> bool:
        """Whether no row waits, not even in the hands of others."""
        if len(rows) >= size:
            return False
        if self._marker is None:
            return not marks.left_beside(connection, self._program)
        return not marks.left(connection, self._source, self._marker)

    def leave_out(self, connection: Connection, rows: Sequence[Any]) -> None:
        keys = [row.key for row in rows]
        if self._marker is None:
            marks.fail_beside(connection, self._program, keys)
        else:
            marks.fail(connection, self._source, self._marker, keys)

    def after(self, _rows: Sequence[Any]) -> None:
        """Return None: the marks tell."""

    def name(self, row: Any) -> str:
        return str(row.key)


def reader_of(
    connection: Connection,
    step: Step,
    params: Any,
    stored: StoredPartition,
    until: list[str] | None = None,
) -> Reader:
    """Return the reader of one partition; ``until`` is where an earlier reader of it ended.

    Raises:
        PlanError: the source is gone, its rows have no order, or its type is unknown.
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
        case Table() if partition.kind is PartitionKind.MARKED:
            marker = planner.marker if isinstance(planner, Indicator) else None
            return MarkReader(source, marker, stored.program, partition.number)
        case Table() | Query():
            return pages_of(connection, source, partition, step.page_by, until, stored.key_type)
        case _:
            raise PlanError(
                f"The source of step {step.name} is a {type(source).__name__}. "
                "Give a Table, a Query or a File, or a function of the parameters that returns one."
            )
