"""The rows of a chunk: read, handed to the handler, and tried again after a failure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection

from tasks_app.batch.execution.chunk_context import ChunkContext
from tasks_app.batch.files.segments import SegmentReader, Unreadable
from tasks_app.batch.planners.flat_file import Extract
from tasks_app.batch.planners.indicator import Indicator
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
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.batch import partition_progress
from tasks_app.pool.batch.sources import marks
from tasks_app.pool.batch.sources.pages import pages_of
from tasks_app.pool.batch.sources.relation import Query

ROLLED_BACK = (
    "The chunk handler rolled back, and with it went what it did for other rows of the chunk. "
    "Use ctx.session.begin_nested() around what may fail, or let the error out."
)


def may_be_caused_by_row(error: Exception) -> bool:
    """Whether one of the rows may be at fault."""
    return not (isinstance(error, Outcome | TasksError) or is_transient(error))


class ChunkRows:
    """What a run does with the rows that it has read; nothing is committed here."""

    def __init__(self, step: Step, ctx: ChunkContext, reader: Reader, left_out: LeftOut) -> None:
        self._step = step
        self._ctx = ctx
        self._reader = reader
        self._left_out = left_out

    def do(self, rows: Sequence[Any], *, sifts: bool) -> RowCounts:
        """Hand the rows to the handler; ``sifts``: an earlier try failed, so look for the row.

        Raises TasksError if the handler rolled back.
        """
        if not rows and self._step.source is not None:
            return RowCounts()
        within = self._ctx.connection.get_transaction() or self._ctx.connection.begin()
        counts = self._done(rows, sifts=sifts)
        if self._ctx.connection.get_transaction() is not within:
            raise TasksError(ROLLED_BACK)
        return counts

    def _done(self, rows: Sequence[Any], *, sifts: bool) -> RowCounts:
        if not sifts and not (self._step.at_end and self._step.skip_limit):
            return RowCounts(len(rows), self._call(rows), 0)
        return self._sift(rows)

    def _call(self, rows: Sequence[Any]) -> int:
        """Call the handler, which may return how many rows it wrote; drivers say -1 for unknown."""
        if isinstance(self._reader, SegmentReader):
            for row in rows:
                if isinstance(row, Unreadable):
                    raise row.error
        told = self._step.chunk(self._ctx, list(rows))  # it may do with its list what it likes
        says = isinstance(told, int) and not isinstance(told, bool) and told >= 0
        return int(told) if says else len(rows)

    def _sift(self, rows: Sequence[Any]) -> RowCounts:
        """Do all rows but those that fail and may be left out, which are written down."""
        written, left_out, odd = 0, list[tuple[str, str]](), list[Any]()
        before = self._left_out.so_far(self._ctx.connection)

        def do(part: Sequence[Any]) -> None:
            nonlocal written
            state = copy.deepcopy(self._ctx.state)
            try:
                with self._ctx.session.begin_nested():
                    done = self._call(part)
                    self._ctx.session.flush()
                    partition_progress.try_deferred(self._ctx.connection)
            except BaseException:
                self._ctx.state = state
                raise
            written += done

        def judge(row: Any, error: Exception) -> None:
            name = self._reader.name(row)
            allowed = before + len(left_out) < self._step.skip_limit
            if not (allowed and isinstance(error, self._step.skips)):
                raise self._left_out.one_too_many(name, brief(error)) from error
            left_out.append((name, brief(error)))
            odd.append(row)

        process_by_halves(rows, do, judge, may_be_caused_by_row)
        if left_out:
            self._reader.leave_out(self._ctx.connection, odd)
            self._left_out.add(self._ctx.connection, left_out)
        return RowCounts(len(rows), written, len(left_out))


def process_by_halves(
    rows: Sequence[Any],
    do: Callable[[Sequence[Any]], None],
    judge: Callable[[Any, Exception], None],
    may_fail: Callable[[Exception], bool],
) -> None:
    """Do the rows in order; halve a part that fails, down to single rows, which are judged.

    ``do`` leaves nothing behind when it raises. What ``judge`` raises comes out, and so does an
    error that is not ``may_fail``: no single row is at fault.
    """
    parts = [rows]
    while parts:
        part = parts.pop()
        try:
            do(part)
        except Exception as error:
            if not may_fail(error):
                raise
            if len(part) == 1:
                judge(part[0], error)
                continue
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]


class LeftOut:
    """The rows that one run leaves out, within the limit of its step, which other runs share."""

    def __init__(self, step: Step, ctx: ChunkContext) -> None:
        self._step = step
        self._ctx = ctx
        self._newest = ("", "")

    def so_far(self, connection: Connection) -> int:
        """Return how many rows of the step are left out, as far as this transaction sees."""
        if not self._step.skip_limit:
            return 0
        return partition_progress.count_skips(connection, self._ctx.batch_id, self._step.name)

    def add(self, connection: Connection, rows: Sequence[tuple[str, str]]) -> None:
        """Write down keys with their reasons."""
        ctx = self._ctx
        partition_progress.add_skips(
            connection, ctx.batch_id, self._step.name, ctx.partition_no, rows
        )
        self._newest = rows[-1]
        ctx.log.warning("left out %d rows", len(rows))

    def check(self, connection: Connection) -> None:
        """Pass if all fits into the limit, and keep others from adding to it until the commit.

        Raises ChunkRowError if others, who have committed meanwhile, took the room.
        """
        left_out = partition_progress.count_skips_exclusively(
            connection, self._ctx.batch_id, self._step.name
        )
        if left_out > self._step.skip_limit:
            raise self.one_too_many(*self._newest)

    def one_too_many(self, name: str, why: str) -> ChunkRowError:
        return ChunkRowError(name, self._ctx.partition_no, why, self._step.skip_limit)


class Reader(Protocol):
    """Reads a partition, some rows at a time."""

    until: Any  # where it ends, as JSON, if that is known when it begins; kept with the checkpoint

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
        self._marker = marker  # None: the marks stand in a table of ours
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

    Raises PlanError if the source is gone, its rows have no order, or its type is unknown.
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
