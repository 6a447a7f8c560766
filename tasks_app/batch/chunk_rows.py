"""The rows of a chunk: all are given to the handler at once, or each but those that fail."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from tasks_app.batch.chunk_context import ChunkContext
from tasks_app.batch.file_reader import SegmentReader, Unreadable
from tasks_app.batch.left_out import LeftOut
from tasks_app.batch.reader import Reader
from tasks_app.batch.sift import sift
from tasks_app.batch.step import Step
from tasks_app.batch.waits import passes
from tasks_app.domain.errors import TasksError
from tasks_app.domain.handlers.outcomes import Outcome
from tasks_app.domain.partition.records import Counts
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.batch import deferred

ROLLED_BACK = (
    "The chunk handler rolled back, and with it went what it did for other rows of the chunk. "
    "Use ctx.session.begin_nested() around what may fail, or let the error out."
)


def may_fail(error: Exception) -> bool:
    """Whether one of the rows may be at fault."""
    ours = isinstance(error, Outcome | TasksError)
    return not (ours or passes(error))


class ChunkRows:
    """What a run does with the rows that it has read; nothing is committed here."""

    def __init__(self, step: Step, ctx: ChunkContext, reader: Reader, left_out: LeftOut) -> None:
        self._step = step
        self._ctx = ctx
        self._reader = reader
        self._left_out = left_out

    def do(self, rows: Sequence[Any], *, sifts: bool) -> Counts:
        """Do them; ``sifts``: an earlier try failed, so look for the row.

        Raises:
            TasksError: the handler rolled back.
        """
        if not rows and self._step.source is not None:
            return Counts()
        within = self._ctx.connection.get_transaction() or self._ctx.connection.begin()
        counts = self._done(rows, sifts=sifts)
        if self._ctx.connection.get_transaction() is not within:
            raise TasksError(ROLLED_BACK)
        return counts

    def _done(self, rows: Sequence[Any], *, sifts: bool) -> Counts:
        if not sifts and not (self._step.at_end and self._step.skip_limit):
            return Counts(len(rows), self._call(rows), 0)
        return self._sift(rows)

    def _call(self, rows: Sequence[Any]) -> int:
        """Call the handler; it may say how many rows it wrote. -1, as drivers say, is no number."""
        if isinstance(self._reader, SegmentReader):
            for row in rows:
                if isinstance(row, Unreadable):
                    raise row.error
        told = self._step.chunk(self._ctx, list(rows))  # it may do with its list what it likes
        says = isinstance(told, int) and not isinstance(told, bool) and told >= 0
        return int(told) if says else len(rows)

    def _sift(self, rows: Sequence[Any]) -> Counts:
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
                    deferred.foresee(self._ctx.connection)
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

        sift(rows, do, judge, may_fail)
        if left_out:
            self._reader.leave_out(self._ctx.connection, odd)
            self._left_out.add(self._ctx.connection, left_out)
        return Counts(len(rows), written, len(left_out))
