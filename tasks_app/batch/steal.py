"""Steal: when no partition waits any more, one that runs gives half of what it has left away.

Nobody takes anything from a run: it lowers its own bound at the border of a chunk, and inserts who
owns the rest, with its task, in one commit under its fence. So at each instant each key has one
owner, and a run that is not the partition's own any more cannot give it away.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, and_

from tasks_app.batch.replan import can_be_divided, share
from tasks_app.batch.step_tasks import StepTasks
from tasks_app.domain.batch.records import BatchStatus, StepStatus
from tasks_app.domain.errors import TasksError
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Partition, StoredPartition
from tasks_app.pool.batch import divide, instances, partition_runs, partitions, steps
from tasks_app.pool.batch.key_text import read_back, word
from tasks_app.pool.batch.measure import count, upper_half
from tasks_app.pool.batch.predicate import predicate
from tasks_app.pool.batch.relation import find, in_order, keys_of, source_of

if TYPE_CHECKING:
    from tasks_app.batch.job import BatchJob
    from tasks_app.batch.step import Step
    from tasks_app.domain.batch.chunk_size import ChunkPace

LOOK_EVERY_S = 1.0
"""How often a run looks whether a partition waits."""
MEASURE_EVERY_S = 30.0
"""How often it counts what it has left, which reads half of the keys."""


class NotNowError(TasksError):
    """Somebody decides about the instance just now, or there is work for who is idle."""


class Stealing:
    """Of one run: what it keeps, and what it gives away."""

    def __init__(self, job: BatchJob, step: Step, params: Any) -> None:
        self._job = job
        self._step = step
        self._params = params
        self._look_at = 0.0

    def halves(self, connection: Connection, partition_id: int, pace: ChunkPace) -> list[Partition]:
        """Return what the run keeps and what it gives away; nothing: it keeps all. Only looks."""
        if time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + LOOK_EVERY_S
        stored = partitions.one(connection, partition_id)
        if stored is None or not _has_a_rest(stored) or self._somebody_waits(connection, stored):
            return []
        self._look_at = time.monotonic() + MEASURE_EVERY_S
        return self._divided(connection, stored, pace)

    def give(
        self,
        connection: Connection,
        stored: StoredPartition,
        halves: list[Partition],
        until: Any = None,
    ) -> None:
        """Make two partitions of one that runs; both end where it does.

        The caller looks at the fence afterwards, and commits at once.

        Raises:
            NotNowError: roll back, and keep all.
        """
        self._look_at = time.monotonic() + LOOK_EVERY_S
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
        own, read = stored.partition, stored.counts.read
        source = self._step.source_of(self._params)
        relation = find(connection, source_of(source, own))
        left = and_(
            predicate(own, relation.key, stored.key_type),
            _behind(stored, in_order(relation.key, stored.key_type)),
        )
        rest = find(connection, keys_of(source, relation, left))
        rows = count(connection, rest)
        cut = upper_half(connection, rest, rows) if pace.is_worth_dividing(rows) else None
        if own.range is None or cut is None:
            return []
        kept = (rows + 1) // 2
        return [
            replace(own, range=Range(own.range.low, cut), rows=read + kept),
            replace(own, range=Range(cut, own.range.high), rows=rows - kept),
        ]

    def _somebody_waits(self, connection: Connection, stored: StoredPartition) -> bool:
        assert stored.batch_id is not None  # noqa: S101  as above
        return partition_runs.under_way(connection, stored.batch_id, self._step.name)[0] > 0


def _has_a_rest(stored: StoredPartition) -> bool:
    """Whether it is read in the order of its key, from a checkpoint on."""
    own = stored.partition
    in_its_order = own.range is not None and not own.owns_null and own.column is None
    return can_be_divided(own) and in_its_order and bool((stored.checkpoint or {}).get("after"))


def _behind(stored: StoredPartition, key: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that a row comes behind all keys that the run has met."""
    return key > read_back(word(stored.checkpoint["after"][0]), stored.key_type)
