"""What a chunk handler gets with its rows."""

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
    """One run of a partition; ``reduce`` and ``compensate`` get one, too."""

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
        """The task's context, for everything else."""
        self.batch_id: int = batch.id
        self.job: str = batch.job
        self.run: int = batch.run
        """1 at first; each restart adds 1."""
        self.step = step
        self.params = params
        """An object of the job's model, or a dict."""
        self.partition = partition
        """Which rows these are; None: all, in ``reduce``."""
        self.state: dict[str, Any] = copy.deepcopy(dict(state or {}))
        """Your JSON: committed with each chunk, rolled back with one that fails, kept for a
        restart, and passed to ``reduce``. Keep it small."""

    @property
    def partition_no(self) -> int:
        """The partition's number, for outputs and file names; -1 in ``reduce``."""
        return -1 if self.partition is None else self.partition.number

    @property
    def session(self) -> Any:
        """A Session that commits with the checkpoint at the end of the chunk."""
        return self.task.session

    @property
    def connection(self) -> Connection:
        """The same transaction without the ORM."""
        return self.task.connection

    @property
    def task_id(self) -> int:
        """The id of this task."""
        return self.task.task_id

    @property
    def attempt(self) -> int:
        """The attempt of this task."""
        return self.task.attempt

    @property
    def idempotency_key(self) -> UUID:
        """The key of this task; append a row's key to get one for each row."""
        return self.task.idempotency_key

    @property
    def created_at(self) -> datetime:
        """When this task was created."""
        return self.task.created_at

    @property
    def cancelled(self) -> bool:
        """Whether this run must stop; between chunks it stops by itself."""
        return self.task.cancelled

    @cached_property
    def log(self) -> RunLog:
        """A log whose lines name the partition and the instance."""
        names = ("job", "batch_id", "step", "partition_no")
        about = {name: getattr(self, name) for name in names}
        part = f", partition {self.partition_no}" if self.partition else ""
        return self.task.log.of(about, f"{self.job} {self.batch_id}, step {self.step}{part}")
