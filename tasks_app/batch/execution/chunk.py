"""The rows of a chunk: read, handed to the handler, and after a failure tried again by halves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection

from tasks_app.batch.execution.chunk_context import ChunkContext
from tasks_app.batch.files.segments import SegmentReader, Unreadable
from tasks_app.batch.planners.even import Indicator
from tasks_app.batch.planners.flat_file import Extract
from tasks_app.batch.step import Step, is_transient
from tasks_app.domain.errors import ChunkRowError, PlanError, TasksError
from tasks_app.domain.handlers.outcomes import Outcome
from tasks_app.domain.partition.records import (
    File,
    Marker,
    PartitionKind,
    RowCounts,
    StoredPartition,
    Table,
)
from tasks_app.domain.tasks.error_text import first_line
from tasks_app.pool.batch import partition_progress
from tasks_app.pool.batch.sources import marks
from tasks_app.pool.batch.sources.pages import pages_of
from tasks_app.pool.batch.sources.relation import Query


class ChunkRows:
    """Hands rows to the handler, and skips bad ones within the step's limit; commits nothing."""

    def __init__(self, step: Step, ctx: ChunkContext) -> None:
        self._step = step
        self._ctx = ctx
        self._newest_skip = ("", "")

    def process(self, reader: Reader, rows: Sequence[Any], *, by_halves: bool) -> RowCounts:
        """Call the handler; ``by_halves``: an earlier try failed, so search the rows at fault."""
        if not rows and self._step.source is not None:
            return RowCounts()
        within = self._ctx.connection.get_transaction() or self._ctx.connection.begin()
        if by_halves or (self._step.at_end and self._step.skip_limit):
            counts = self._skip_bad_rows(reader, rows)
        else:
            counts = RowCounts(len(rows), self._call(rows), 0)
        if self._ctx.connection.get_transaction() is not within:
            raise TasksError(
                "The chunk handler rolled back, which undid its work for other rows of the chunk. "
                "Use ctx.session.begin_nested() around what may fail, or let the error out."
            )
        return counts

    def _call(self, rows: Sequence[Any]) -> int:
        """Call the handler, which may return how many rows it wrote; drivers say -1 for unknown."""
        for row in rows:
            if isinstance(row, Unreadable):
                raise row.error
        result = self._step.chunk(self._ctx, list(rows))  # it may change its list
        is_count = isinstance(result, int) and not isinstance(result, bool) and result >= 0
        return int(result) if is_count else len(rows)

    def _skip_bad_rows(self, reader: Reader, rows: Sequence[Any]) -> RowCounts:
        ctx, name, limit = self._ctx, self._step.name, self._step.skip_limit
        written, reasons, bad = 0, list[tuple[str, str]](), list[Any]()
        before = partition_progress.count_skips(ctx.connection, ctx.batch_id, name) if limit else 0

        def process(part: Sequence[Any]) -> None:
            nonlocal written
            state = copy.deepcopy(ctx.state)
            try:
                with self._ctx.session.begin_nested():
                    done = self._call(part)
                    ctx.session.flush()
                    partition_progress.try_deferred(self._ctx.connection)
            except BaseException:
                ctx.state = state
                raise
            written += done

        def skip(row: Any, error: Exception) -> None:
            reason = reader.name(row), first_line(error)
            allowed = before + len(reasons) < limit
            if not (allowed and isinstance(error, self._step.skips)):
                raise self._over_limit(*reason) from error
            reasons.append(reason)
            bad.append(row)

        process_by_halves(rows, process, skip, may_be_caused_by_row)
        if reasons:
            reader.leave_out(ctx.connection, bad)
            of = ctx.batch_id, name, ctx.partition_no
            partition_progress.add_skips(ctx.connection, *of, reasons)
            self._newest_skip = reasons[-1]
            ctx.log.warning("skipped %d rows", len(reasons))
        return RowCounts(len(rows), written, len(reasons))

    def check_limit(self, connection: Connection) -> None:
        """Raise ChunkRowError if others have used up the limit; none can add until the commit."""
        left_out = partition_progress.count_skips_exclusively(
            connection, self._ctx.batch_id, self._step.name
        )
        if left_out > self._step.skip_limit:
            raise self._over_limit(*self._newest_skip)

    def _over_limit(self, name: str, why: str) -> ChunkRowError:
        return ChunkRowError(name, self._ctx.partition_no, why, self._step.skip_limit)


def may_be_caused_by_row(error: Exception) -> bool:
    return not (isinstance(error, Outcome | TasksError) or is_transient(error))


def process_by_halves(
    rows: Sequence[Any],
    process: Callable[[Sequence[Any]], None],
    skip: Callable[[Any, Exception], None],
    may_be_row: Callable[[Exception], bool],
) -> None:
    """Process the rows in order; halve a part that fails, down to single rows, which are skipped.

    ``process`` must undo its part when it raises. Errors of ``skip`` come out, and those of no row.
    """
    parts = [rows]
    while parts:
        part = parts.pop()
        try:
            process(part)
        except Exception as error:
            if not may_be_row(error):
                raise
            if len(part) == 1:
                skip(part[0], error)
                continue
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]


class Reader(Protocol):
    """Reads a partition, some rows at a time; checkpoints are JSON."""

    until: Any  # where the partition ends, if that is known; kept with the checkpoint

    # Up to ``size`` rows behind a checkpoint.
    def read(self, connection: Connection, after: Any, size: int) -> Sequence[Any]: ...
    # Whether nothing comes behind these rows, of which ``size`` were requested.
    def is_last(self, connection: Connection, rows: Sequence[Any], size: int) -> bool: ...
    # Marks these rows as skipped, if the source keeps that.
    def leave_out(self, connection: Connection, rows: Sequence[Any]) -> None: ...
    # The checkpoint behind these rows.
    def after(self, rows: Sequence[Any]) -> Any: ...
    # The key by which people find the row.
    def name(self, row: Any) -> str: ...


def reader_of(
    connection: Connection,
    step: Step,
    params: Any,
    stored: StoredPartition,
    until: list[str] | None = None,
) -> Reader:
    """Return the reader of a partition; ``until`` is where an earlier reader of it ended."""
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


class NoRows:
    """Reads nothing; the handler of such a step is called once."""

    until = None

    def read(self, _connection: Connection, _after: Any, _size: int) -> Sequence[Any]:
        return ()

    def is_last(self, _connection: Connection, _rows: Sequence[Any], _size: int) -> bool:
        return True

    def leave_out(self, _connection: Connection, _rows: Sequence[Any]) -> None: ...

    def after(self, _rows: Sequence[Any]) -> Any: ...

    def name(self, _row: Any) -> str:
        return ""


class MarkReader:
    """Takes rows as they come and marks them; the marks are the only checkpoint."""

    until = None

    def __init__(self, source: Table, marker: Marker | None, program: str, number: int) -> None:
        self._source = source
        self._marker = marker  # None: the marks are in task_marker
        self._program = program
        self._number = number

    def read(self, connection: Connection, _after: Any, size: int) -> Sequence[Any]:
        """Take rows that no other run holds; a rollback gives them back."""
        if self._marker is None:
            return marks.take_beside(connection, self._program, self._source, size, self._number)
        return marks.take(connection, self._source, self._marker, size)

    def is_last(self, connection: Connection, rows: Sequence[Any], size: int) -> bool:
        """Whether no row waits, not even one that another run holds."""
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

    def after(self, _rows: Sequence[Any]) -> None: ...

    def name(self, row: Any) -> str:
        return str(row.key)
