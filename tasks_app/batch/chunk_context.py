"""What a chunk handler is given beside its rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Connection

    from tasks_app.domain.batch.records import Batch
    from tasks_app.domain.partition.records import Partition
    from tasks_app.runtime.handlers.context import TaskContext
    from tasks_app.runtime.handlers.run_log import RunLog


class ChunkContext:
    """One run of one partition, or of what is around them: reduce and compensate have it, too."""

    def __init__(
        self,
        task: TaskContext,
        batch: Batch,
        step: str,
        params: Any,
        partition: Partition | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.task = task
        """The run of the task, for all that is not here."""
        self.batch_id = batch.id
        self.job = batch.job
        self.run = batch.run
        """1, then one more with each restart."""
        self.step = step
        self.params = params
        """As the job's model has them, or a dict."""
        self.partition = partition
        """Which rows these are; None: of all, in reduce."""
        self.state: dict[str, Any] = copy.deepcopy(dict(state or {}))
        """Yours: JSON that is committed with each chunk, rolled back with one that fails, there
        again after a restart, and what reduce is given of the partition. Keep it small."""

    @property
    def partition_no(self) -> int:
        """The partition's number, for outputs, file names and reports; -1: none, in reduce."""
        return -1 if self.partition is None else self.partition.number

    @property
    def session(self) -> Any:
        """A Session that commits with the checkpoint, at the end of the chunk."""
        return self.task.session

    @property
    def connection(self) -> Connection:
        """The same transaction without the ORM."""
        return self.task.connection

    @property
    def task_id(self) -> int:
        """The id of the task that runs."""
        return self.task.task_id

    @property
    def attempt(self) -> int:
        """Of that task."""
        return self.task.attempt

    @property
    def idempotency_key(self) -> UUID:
        """Of that task; with a row's key in it, one for each row."""
        return self.task.idempotency_key

    @property
    def created_at(self) -> datetime:
        """When that task was created."""
        return self.task.created_at

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants this run to stop; between chunks it does by itself."""
        return self.task.cancelled

    @cached_property
    def log(self) -> RunLog:
        """A log whose lines say which partition of which instance they are of."""
        about = {
            "job": self.job,
            "batch_id": self.batch_id,
            "step": self.step,
            "partition_no": self.partition_no,
        }
        part = f", partition {self.partition_no}" if self.partition else ""
        return self.task.log.of(about, f"{self.job} {self.batch_id}, step {self.step}{part}")
