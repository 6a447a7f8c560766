"""The tasks of an instance's steps: what each is to do, and whose end calls the join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks_app.batch.step import Job, Step
from tasks_app.domain.batch.records import Batch
from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import TasksError
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.records import TaskId
from tasks_app.pool.batch import instances, partition_runs, steps
from tasks_app.pool.batch import partitions as store
from tasks_app.runtime.api.groups import create_group, extend_group
from tasks_app.runtime.db.connections import Sync, connection_of

DECIDING = 0
"""The priority of joins: after a decision much of what waits is not started at all."""


class StepTasks:
    """Makes the tasks of one instance, whose row is locked."""

    def __init__(self, job: Job, session: Sync, batch: Batch) -> None:
        self._job = job
        self._session = session
        self._batch = batch

    def new(self, step: Step, which: str, **payload: Any) -> NewTask:
        options: TaskOptions = {
            "biz_key": instances.biz_key(self._batch.id),
            "priority": DECIDING if which == "join" else step.priority,
        }
        given = {"batch": self._batch.id, "step": step.name, "run": self._batch.run, **payload}
        return NewTask(getattr(self._job.handlers[step.name], which), given, options)

    def begin(
        self, step: Step, tasks: Sequence[NewTask], *, then: bool = True, **more: Any
    ) -> list[TaskId]:
        """Create tasks whose end calls the join; without ``then`` only a failure calls it."""
        known = steps.find(connection_of(self._session), self._batch.id)
        join = self.new(step, "join", of=known[step.name].phase)
        made = create_group(
            self._session, tasks, then=join if then else None, on_failure=join, **more
        )
        return made.task_ids

    def partitions(self, step: Step, ids: Sequence[int]) -> list[NewTask]:
        return [self.new(step, "partition", partition=part) for part in ids]

    def add(self, step: Step, ids: Sequence[int]) -> None:
        """Start more partitions beside those that are under way: the join waits for them, too.

        Raises:
            TasksError: none is under way, or the join was called: roll back.
        """
        connection = connection_of(self._session)
        _, group_id = partition_runs.under_way(connection, self._batch.id, step.name)
        if group_id is None:
            raise TasksError(f"Nothing of step {step.name} is under way. Restart the instance.")
        made = extend_group(self._session, group_id, self.partitions(step, ids))
        store.assign(connection, dict(zip(ids, made, strict=True)))
