"""Work stealing: when no partition waits, one that runs gives away half of what it has left.

Nobody takes anything from a run. Between two chunks it lowers its own bound and inserts the
partition that owns the rest, with its task, in one commit under its fence. So each key has one
owner at every moment, and a run that has lost its partition cannot give it away.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.replan import can_be_divided, share
from tasks_app.batch.step import Job, Step
from tasks_app.batch.step_tasks import StepTasks
from tasks_app.domain.batch.policies import ChunkPace
from tasks_app.domain.batch.records import BatchStatus, StepStatus
from tasks_app.domain.errors import TasksError
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Partition, StoredPartition
from tasks_app.pool.batch import divide, instances, partition_runs, partitions, steps
from tasks_app.pool.batch.sources.cuts import keys_owned, upper_half
from tasks_app.pool.batch.sources.measure import count


class NotNowError(TasksError):
    """Somebody decides about the instance at this moment, or idle workers have work already."""


class Stealing:
    """What one run keeps, and what it gives away."""

    def __init__(self, job: Job, step: Step, params: Any) -> None:
        self._job = job
        self._step = step
        self._params = params
        self._look_at = 0.0

    def halves(self, connection: Connection, partition_id: int, pace: ChunkPace) -> list[Partition]:
        """Return what the run keeps and what it gives away; empty: it keeps all. Only reads."""
        if time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + self._job.tuning.steal_look_every_s
        stored = partitions.one(connection, partition_id)
        if stored is None or not _has_a_rest(stored) or self._somebody_waits(connection, stored):
            return []
        self._look_at = time.monotonic() + self._job.tuning.measure_every_s
        return self._divided(connection, stored, pace)

    def give(
        self,
        connection: Connection,
        stored: StoredPartition,
        halves: list[Partition],
        until: Any = None,
    ) -> None:
        """Make two partitions of one that runs; both end where it does.

        The caller checks the fence afterwards, and commits at once.

        Raises:
            NotNowError: roll back, and keep all.
        """
        self._look_at = time.monotonic() + self._job.tuning.steal_look_every_s
        assert stored.batch_id is not None  # noqa: S101  a run is of an instance
        batch = instances.lock_if_free(connection, stored.batch_id)
        if batch is None or batch.status is not BatchStatus.RUNNING:
            raise NotNowError("Somebody decides about the instance.")
        stands = steps.find(connection, batch.id)[self._step.name]
        if stands.status is not StepStatus.RUNNING or self._somebody_waits(connection, stored):
            raise NotNowError("There is work for who is idle, or none is wanted.")
        numbers = [
            each.partition.number for each in partitions.of_program(connection, stored.program)
        ]
        made = share(connection, stored, halves, 1 + max(numbers))
        divide.end_at(connection, list(made.values()), until)
        try:
            StepTasks(self._job, connection, batch).add(self._step, list(made.values()))
        except TasksError as error:
            raise NotNowError("The join is called already.") from error

    def _divided(
        self, connection: Connection, stored: StoredPartition, pace: ChunkPace
    ) -> list[Partition]:
        own, read, met = stored.partition, stored.counts.read, stored.checkpoint["after"][0]
        source = self._step.source_of(self._params)
        rest = keys_owned(connection, source, own, stored.key_type, behind=met)
        rows = count(connection, rest)
        is_worth_it = pace.is_worth_dividing(rows, self._job.tuning.worth_s)
        cut = upper_half(connection, rest, rows) if is_worth_it else None
        if own.range is None or cut is None:
            return []
        kept = (rows + 1) // 2
        return [
            replace(own, range=Range(own.range.low, cut), rows=read + kept),
            replace(own, range=Range(cut, own.range.high), rows=rows - kept),
        ]

    def _somebody_waits(self, connection: Connection, stored: StoredPartition) -> bool:
        assert stored.batch_id is not None  # noqa: S101  a run is of an instance
        return partition_runs.under_way(connection, stored.batch_id, self._step.name)[0] > 0


def _has_a_rest(stored: StoredPartition) -> bool:
    """Whether it is read in the order of its key, and has a checkpoint."""
    own = stored.partition
    in_its_order = own.range is not None and not own.owns_null and own.column is None
    return can_be_divided(own) and in_its_order and bool((stored.checkpoint or {}).get("after"))
