"""A run of a partition: one commit for each chunk; half of what is left goes to idle workers."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from operator import add
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.execution.chunk import ChunkRows, may_be_caused_by_row, reader_of
from tasks_app.batch.execution.chunk_context import ChunkContext
from tasks_app.batch.progress import StepTasks
from tasks_app.batch.replan import can_be_divided, share
from tasks_app.batch.step import Job, Step, is_transient
from tasks_app.domain.batch.policies import ChunkPace
from tasks_app.domain.batch.records import BatchStatus, StepStatus
from tasks_app.domain.errors import TaskCancelledError, TasksError
from tasks_app.domain.handlers.outcomes import Cancel, Snooze
from tasks_app.domain.partition.keys import Range
from tasks_app.domain.partition.records import Partition, RowCounts, Status, StoredPartition
from tasks_app.pool.batch import instances, partition_progress, partition_runs, partitions
from tasks_app.pool.batch.partition_progress import RunSignal
from tasks_app.pool.batch.sources.cuts import keys_owned, upper_half
from tasks_app.pool.batch.sources.measure import count
from tasks_app.pool.fragments.conditions import is_queue_stopped
from tasks_app.runtime.db.errors import is_unanswered
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.startup import uncollected


def status_after(signal: RunSignal) -> Status:
    return Status.ABANDONED if signal is RunSignal.ABANDON else Status.STOPPED


class PartitionRun:
    """One run, from the checkpoint to the end of the partition or of the turn."""

    def __init__(
        self, task: TaskContext, job: Job, step: Step, ctx: ChunkContext, stored: StoredPartition
    ) -> None:
        self._task = task
        self._step = step
        self._ctx = ctx
        self._stealing = Stealing(job, step, ctx.params) if step.steal else None
        self._tuning = job.tuning
        self._rows = ChunkRows(step, ctx)
        checkpoint = stored.checkpoint or {}
        self._read_as(stored, checkpoint.get("until"))
        self._after: Any = checkpoint.get("after")
        self._signal = RunSignal.CONTINUE
        self._done = RowCounts()  # counts that are not written yet, with one commit at the end
        self._pace = ChunkPace(step.commit_every)
        self._by_halves = False  # the last try failed: this one searches the row
        self._turn_ends = time.monotonic() + step.turn.total_seconds()
        self._next_queue_check = 0.0
        self._connection = task.connection  # that of this chunk, with a session or without

    def run(self) -> dict[str, Any]:
        """Run to the end and return the result; raise Cancel, or Snooze if the turn is over."""
        try:
            while not self._process_chunk():
                if not self._step.at_end:
                    self._stop_between_chunks()
                if self._stealing is not None:
                    self._give_half_away(self._stealing)
        except TaskCancelledError:  # within a chunk
            self._roll_back()
            self._end(Status.STOPPED)
            self._task.commit()
            raise
        return {"batch": self._ctx.batch_id, "partition_no": self._ctx.partition_no}

    # -- one chunk

    def _process_chunk(self) -> bool:
        """Process and commit one chunk; True: it was the last, which commits with the outcome."""
        tries = 0
        while True:
            try:
                with uncollected():  # a collection would visit each row, and find all in use
                    return self._try_chunk()
            except Exception as error:
                waits = is_transient(error) and tries < self._tuning.most_tries
                search = not self._by_halves and may_be_caused_by_row(error)
                if self._step.at_end or is_unanswered(error) or not (waits or search):
                    raise
                self._roll_back()
                if waits:
                    tries += 1
                    time.sleep(self._tuning.wait_s(tries))
                else:
                    self._by_halves = True

    def _try_chunk(self) -> bool:
        began, state = time.monotonic(), copy.deepcopy(self._ctx.state)
        self._connection = self._task.connection
        try:
            rows = self._reader.read(self._task.connection, self._after, self._pace.size)
            counts = self._rows.process(self._reader, rows, by_halves=self._by_halves)
            after = self._reader.after(rows) if rows else self._after
            last = self._reader.is_last(self._task.connection, rows, self._pace.size)
            if not (rows or last):
                raise Snooze(self._tuning.others_wait_s, "other runs hold the remaining rows")

            done = RowCounts(*map(add, self._done, counts))
            if last or not self._step.at_end:
                self._task.session.flush()  # while a refused chunk can be tried again
                partition_progress.check_deferred(self._task.connection)
            if last:
                self._advance(self._task.connection, after, done, last=True)
                self._end(Status.COMPLETED)
            elif not self._step.at_end:
                self._task.commit_by(lambda connection: self._advance(connection, after, done))
        except BaseException:
            self._ctx.state = state
            raise
        self._after, self._by_halves = after, False
        self._done = done if self._step.at_end else RowCounts()
        self._pace.learn(len(rows), time.monotonic() - began)
        return last

    def _advance(
        self, connection: Connection, after: Any, counts: RowCounts, *, last: bool = False
    ) -> None:
        if counts.skipped:
            self._rows.check_limit(connection)
        checkpoint = {"after": after, "until": self._reader.until, "state": self._ctx.state}
        signal = partition_progress.progress(
            connection, self._stored.id, self._task.fence, counts, checkpoint, last=last
        )
        if signal is None:
            raise Cancel("another task has the partition")
        self._signal = signal

    # -- between chunks

    def _stop_between_chunks(self) -> None:
        """Stop, if necessary, where a restart or the next turn can continue; charges no failure."""
        if self._signal is not RunSignal.CONTINUE:
            self._end(status_after(self._signal))
            self._task.commit()
            raise Cancel("stopped at a chunk")
        now = time.monotonic()
        if self._task.stopping:
            raise Snooze(0, "the worker stops")
        if now >= self._turn_ends:
            raise Snooze(0, "its turn is over")
        if now >= self._next_queue_check:
            self._next_queue_check = now + self._tuning.look_every_s
            if is_queue_stopped(self._task.connection, self._task.queue):
                raise Snooze(0, "nothing of its queue may start now")

    def _give_half_away(self, stealing: Stealing) -> None:
        halves = stealing.halves(self._task.connection, self._stored.id, self._pace)
        if not halves:
            return

        def give(connection: Connection) -> None:
            stealing.give(connection, self._stored, halves, self._reader.until)
            self._advance(connection, self._after, RowCounts())

        try:
            self._task.commit_by(give)
        except Exception as error:
            if not (isinstance(error, NothingToStealError) or is_transient(error)):
                raise
            self._roll_back()
        else:
            self._read_as(replace(self._stored, partition=halves[0]), self._reader.until)

    def _read_as(self, stored: StoredPartition, until: Any) -> None:
        self._stored, self._ctx.partition = stored, stored.partition
        connection, params = self._task.connection, self._ctx.params
        self._reader = reader_of(connection, self._step, params, stored, until)

    def _roll_back(self) -> None:
        session = self._task.session
        if session.in_transaction():
            session.rollback()
        self._connection.rollback()  # what began without the session, or did not COMMIT

    def _end(self, status: Status) -> None:
        connection = self._task.connection
        if not partition_progress.finish(connection, self._stored.id, self._task.fence, status):
            raise Cancel("another task has the partition")


class NothingToStealError(TasksError):
    """Another transaction holds the instance, or idle workers have work already."""


class Stealing:
    def __init__(self, job: Job, step: Step, params: Any) -> None:
        self._job = job
        self._step = step
        self._params = params
        self._next_check = 0.0

    def halves(self, connection: Connection, partition_id: int, pace: ChunkPace) -> list[Partition]:
        """Return what the run keeps and what it gives away; empty: it keeps all. Only reads."""
        tuning = self._job.tuning
        if time.monotonic() < self._next_check:
            return []
        self._next_check = time.monotonic() + tuning.steal_look_every_s
        stored = partitions.get(connection, partition_id)
        if stored is None or not _can_be_halved(stored) or self._has_waiting(connection, stored):
            return []
        self._next_check = time.monotonic() + tuning.measure_every_s
        own, read, after = stored.partition, stored.counts.read, stored.checkpoint["after"][0]
        source = self._step.source_of(self._params)
        rest = keys_owned(connection, source, own, stored.key_type, behind=after)
        rows = count(connection, rest)
        is_worth_it = pace.is_worth_dividing(rows, tuning.worth_s)
        cut = upper_half(connection, rest, rows) if is_worth_it else None
        if own.range is None or cut is None:
            return []
        kept = (rows + 1) // 2
        return [
            replace(own, range=Range(own.range.low, cut), rows=read + kept),
            replace(own, range=Range(cut, own.range.high), rows=rows - kept),
        ]

    def give(
        self,
        connection: Connection,
        stored: StoredPartition,
        halves: list[Partition],
        until: Any = None,
    ) -> None:
        """Divide the partition of this run; the caller then checks the fence and commits.

        After a NothingToStealError it rolls back and keeps all. Both parts end at the old end.
        """
        self._next_check = time.monotonic() + self._job.tuning.steal_look_every_s
        assert stored.batch_id is not None  # noqa: S101  a run is of an instance
        batch = instances.lock_if_free(connection, stored.batch_id)
        if batch is None or batch.status is not BatchStatus.RUNNING:
            raise NothingToStealError("The instance is locked, or does not run.")
        step = instances.find_steps(connection, batch.id)[self._step.name]
        if step.status is not StepStatus.RUNNING or self._has_waiting(connection, stored):
            raise NothingToStealError("Idle workers have work, or the step does not run.")
        known = partitions.find_by_program(connection, stored.program)
        made = share(connection, stored, halves, 1 + max(each.partition.number for each in known))
        partitions.set_range_end(connection, list(made.values()), until)
        try:
            StepTasks(self._job, connection, batch).add(self._step, list(made.values()))
        except TasksError as error:
            raise NothingToStealError("The join is called already.") from error

    def _has_waiting(self, connection: Connection, stored: StoredPartition) -> bool:
        assert stored.batch_id is not None  # noqa: S101  a run is of an instance
        return partition_runs.count_waiting(connection, stored.batch_id, self._step.name)[0] > 0


def _can_be_halved(stored: StoredPartition) -> bool:
    """Whether it is read in the order of its key, and has a checkpoint."""
    own = stored.partition
    in_its_order = own.range is not None and not own.owns_null and own.column is None
    return can_be_divided(own) and in_its_order and bool((stored.checkpoint or {}).get("after"))
