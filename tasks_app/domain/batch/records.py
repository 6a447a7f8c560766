"""Records of batch jobs: an instance, its steps, and how their partitions stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from tasks_app.domain.partition.records import Counts, Status


class BatchStatus(StrEnum):
    """How an instance of a job stands."""

    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    """Somebody wants it to stop; what runs ends at its next chunk."""
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    COMPLETED = "COMPLETED"
    ABANDONED = "ABANDONED"
    """Never to go on. Its parameters are free: the same ones begin anew."""


class StepStatus(StrEnum):
    """How a step stands."""

    WAITING = "WAITING"
    """For the steps before it."""
    PLANNING = "PLANNING"
    RUNNING = "RUNNING"
    """Its partitions do."""
    COMPENSATING = "COMPENSATING"
    REDUCING = "REDUCING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def is_active(self) -> bool:
        """Whether tasks of it are under way, the last of which calls the join."""
        return self in ACTIVE


ACTIVE = frozenset(
    {StepStatus.PLANNING, StepStatus.RUNNING, StepStatus.COMPENSATING, StepStatus.REDUCING}
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One instance of a job."""

    id: int
    job: str
    params: dict[str, Any]
    status: BatchStatus
    run: int
    """1, then one more with each restart."""
    created_at: datetime
    started_at: datetime
    """Of the newest run."""
    ended_at: datetime | None
    error: str | None


class JobRun(NamedTuple):
    """What a start or restart began."""

    batch_id: int
    run: int
    new: bool
    """False: the instance was there, and goes on."""


@dataclass(frozen=True, slots=True)
class BatchStep:
    """One step of an instance."""

    batch_id: int
    step: str
    status: StepStatus
    run: int
    """The run that it was last part of."""
    round: int
    """How often aborted partitions were started again, in this run."""
    plan: dict[str, Any] | None
    """How it was split, by which method, and what that cost."""
    result: Any
    """What reduce returned."""
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None

    @property
    def phase(self) -> str:
        """What a join that is created now will decide about, and no other time."""
        return f"{self.status} {self.round}"


class PartTally(NamedTuple):
    """How many partitions of a step stand how, and what they have done."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    running: int = 0
    compensated: int = 0
    counts: Counts = Counts()


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a partition leaves to reduce."""

    partition_no: int
    low: str | None
    high: str | None
    status: Status
    state: dict[str, Any]
    """``ctx.state`` as its last chunk left it."""
    counts: Counts


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that a chunk could not do and that the step may leave out."""

    step: str
    partition_no: int
    key: str
    """The row's key; nothing else of the row."""
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class BatchView:
    """An instance as people see it."""

    batch: Batch
    steps: tuple[BatchStep, ...]
    tallies: dict[str, PartTally] = field(default_factory=dict)
    alive: int = 0
    """How many tasks of it wait or run."""
    at: datetime | None = None
    """When this was read, by the database's clock."""

    @property
    def is_lost(self) -> bool:
        """Whether it says that it runs, and nothing of it is left that could."""
        return self.batch.status in {BatchStatus.RUNNING, BatchStatus.STOPPING} and not self.alive
