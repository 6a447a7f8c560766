"""A run of a partition: chunk after chunk, each one commit with its checkpoint and its counts."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from operator import add
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.chunk_context import ChunkContext
from tasks_app.batch.file_reader import SegmentReader, Unreadable
from tasks_app.batch.reader import Reader
from tasks_app.batch.sift import sift
from tasks_app.batch.step import Step
from tasks_app.batch.waits import MOST_TRIES, passes, wait_s
from tasks_app.domain.batch.pace import ChunkPace
from tasks_app.domain.causes import brief
from tasks_app.domain.errors import ChunkRowError, TasksError
from tasks_app.domain.outcome import Cancel, Outcome, Snooze
from tasks_app.domain.partition.records import Counts, Status, StoredPartition
from tasks_app.pool.batch import advance, skips
from tasks_app.pool.batch.advance import Word
from tasks_app.pool.standstill import standing_still
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.context import TaskContext
from tasks_app.runtime.reactions import is_unanswered
from tasks_app.runtime.uncollected import uncollected

OTHERS_WAIT_S = 1.0
"""How long a run stays away whose rows others have taken, and may give back."""
LOOK_EVERY_S = 1.0
"""How often a run looks whether its queue stands still."""

ROLLED_BACK = (
    "The chunk handler rolled back, and with it went what it did for other rows of the chunk. "
    "Use ctx.session.begin_nested() around what may fail, or let the error out."
)


def status_after(word: Word) -> Status:
    """Return how a partition stands whose run was told to stop."""
    return Status.ABANDONED if word is Word.CALLED_OFF else Status.STOPPED


class PartitionRun:
    """One run, from the checkpoint to the end of the partition or of its turn."""

    def __init__(
        self,
        task: TaskContext,
        step: Step,
        ctx: ChunkContext,
        stored: StoredPartition,
        reader: Reader,
    ) -> None:
        self._task = task
        self._step = step
        self._ctx = ctx
        self._stored = stored
        self._reader = reader
        self._after: Any = (stored.checkpoint or {}).get("after")
        self._word = Word.GO_ON
        self._done = Counts()
        """What is done and not told yet: of one commit at the end."""
        self._pace = ChunkPace(step.commit_every)
        self._sifts = False
        """The last try failed: this one looks for the row."""
        self._turn_ends = time.monotonic() + step.turn.total_seconds()
        self._look_at = 0.0

    def run(self) -> dict[str, Any]:
        """Go on to the end; return what the task's result says.

        Raises:
            Cancel: the instance is to stop, or somebody cancelled this task.
            Snooze: others have their turn, and this run goes on later.
        """
        while not self._chunk():
            if not self._step.at_end:
                self._stop_here_if_asked()
        return {"batch": self._ctx.batch_id, "partition_no": self._ctx.partition_no}

    # -- one chunk

    def _chunk(self) -> bool:
        """Do one chunk and commit it; True: it was the last one, which commits with the outcome."""
        tries = 0
        while True:
            try:
                with uncollected():  # it would look at each row, and find all of them in use
                    return self._once()
            except Exception as error:
                if self._step.at_end or is_unanswered(error):
                    raise
                self._roll_back()
                if passes(error) and tries < MOST_TRIES:
                    tries += 1
                    time.sleep(wait_s(tries))
                elif self._sifts or not self._may_fail(error):
                    raise
                else:
                    self._sifts = True

    def _once(self) -> bool:
        began, state = time.monotonic(), copy.deepcopy(self._ctx.state)
        try:
            rows = self._reader.read(self._task.connection, self._after, self._pace.size)
            within = self._task.connection.get_transaction() or self._task.connection.begin()
            counts = self._process(rows)
            if self._task.connection.get_transaction() is not within:
                raise TasksError(ROLLED_BACK)
            after = self._reader.after(rows) if rows else self._after
            last = self._reader.is_last(self._task.connection, rows, self._pace.size)
            if not (rows or last):
                raise Snooze(OTHERS_WAIT_S, "others have the rest in hand")

            done = Counts(*map(add, self._done, counts))
            if last:
                self._task.session.flush()  # here it can be tried again
                self._advance(self._task.connection, after, done, last=True)
                self._end(Status.COMPLETED)
            elif not self._step.at_end:
                self._task.commit_by(lambda connection: self._advance(connection, after, done))
        except BaseException:
            self._ctx.state = state
            raise
        self._after, self._sifts = after, False
        self._done = done if self._step.at_end else Counts()
        self._pace.learn(len(rows), time.monotonic() - began)
        return last

    def _advance(
        self, connection: Connection, after: Any, counts: Counts, *, last: bool = False
    ) -> None:
        word = advance.progress(
            connection,
            self._stored.id,
            self._task.fence,
            counts,
            {"after": after, "state": self._ctx.state},
            last=last,
        )
        if word is None:
            raise Cancel("another task has the partition")
        self._word = word

    # -- its rows

    def _process(self, rows: Sequence[Any]) -> Counts:
        if not rows and self._step.source is not None:
            return Counts()
        if not self._sifts and not (self._step.at_end and self._step.skip_limit):
            written = self._call(rows)
            return Counts(len(rows), written, 0)
        return self._sift(rows)

    def _call(self, rows: Sequence[Any]) -> int:
        """Call the handler; it may say how many rows it wrote. -1, as drivers say, is no number."""
        if isinstance(self._reader, SegmentReader):
            for row in rows:
                if isinstance(row, Unreadable):
                    raise row.error
        told = self._step.chunk(self._ctx, rows)
        says = isinstance(told, int) and not isinstance(told, bool) and told >= 0
        return int(told) if says else len(rows)

    def _sift(self, rows: Sequence[Any]) -> Counts:
        """Do all rows but those that fail and may be left out, which are written down."""
        written, left_out, odd = 0, list[tuple[str, str]](), list[Any]()
        before = self._left_out_so_far()

        def do(part: Sequence[Any]) -> None:
            nonlocal written
            state = copy.deepcopy(self._ctx.state)
            try:
                with self._task.session.begin_nested():
                    done = self._call(part)
            except BaseException:
                self._ctx.state = state
                raise
            written += done

        def judge(row: Any, error: Exception) -> None:
            name = self._reader.name(row)
            allowed = before + len(left_out) < self._step.skip_limit
            if not (allowed and isinstance(error, self._step.skips)):
                raise ChunkRowError(
                    name, self._ctx.partition_no, brief(error), self._step.skip_limit
                ) from error
            left_out.append((name, brief(error)))
            odd.append(row)

        sift(rows, do, judge, self._may_fail)
        if left_out:
            self._reader.leave_out(self._task.connection, odd)
            skips.add(
                self._task.connection,
                self._ctx.batch_id,
                self._step.name,
                self._ctx.partition_no,
                left_out,
            )
            self._ctx.log.warning("left out %d rows", len(left_out))
        return Counts(len(rows), written, len(left_out))

    def _left_out_so_far(self) -> int:
        if not self._step.skip_limit:
            return 0
        connection = self._task.connection
        return skips.count(connection, self._ctx.batch_id, self._step.name)

    @staticmethod
    def _may_fail(error: Exception) -> bool:
        """Whether one of the rows may be at fault."""
        ours = isinstance(error, Outcome | TasksError)
        return not (ours or passes(error))

    # -- between chunks

    def _stop_here_if_asked(self) -> None:
        """Stop where a restart, or the next turn, goes on; nothing is charged."""
        if self._word is not Word.GO_ON:
            self._end(status_after(self._word))
            self._task.commit()
            raise Cancel("stopped at a chunk")
        now = time.monotonic()
        if self._task.stopping:
            raise Snooze(0, "the worker stops")
        if now >= self._turn_ends:
            raise Snooze(0, "its turn is over")
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            still = standing_still(self._task.connection)
            if not still.isdisjoint({EVERY_QUEUE, self._task.queue}):
                raise Snooze(0, "its queue stands still")

    def _roll_back(self) -> None:
        """Undo what was done since the last commit, whichever way it was done."""
        session = self._task.session
        if not session.in_transaction():
            session.connection()  # takes over what was begun without it
        session.rollback()

    def _end(self, status: Status) -> None:
        connection = self._task.connection
        if not advance.end(connection, self._stored.id, self._task.fence, status):
            raise Cancel("another task has the partition")
