"""Records of batch jobs: an instance, its steps, and the state of their partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from tasks_app.domain.partition.records import RowCounts, Status


class BatchStatus(StrEnum):
    """The status of an instance of a job."""

    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    """Somebody wants it to stop; what runs ends at its next chunk."""
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    COMPLETED = "COMPLETED"
    ABANDONED = "ABANDONED"
    """It never goes on. The same parameters make a new instance."""


class StepStatus(StrEnum):
    """The status of a step."""

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
    """1 at first; each restart adds 1."""
    created_at: datetime
    started_at: datetime
    """When the newest run started."""
    ended_at: datetime | None
    error: str | None


class JobRun(NamedTuple):
    """What a start or restart began."""

    batch_id: int
    run: int
    new: bool
    """False: the instance existed, and goes on."""


@dataclass(frozen=True, slots=True)
class BatchStep:
    """One step of an instance."""

    batch_id: int
    step: str
    status: StepStatus
    run: int
    """The run that it last took part in."""
    round: int
    """How often aborted partitions were started again, in this run."""
    plan: dict[str, Any] | None
    """The method of its plan, and what that cost."""
    result: Any
    """What reduce returned."""
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None

    @property
    def phase(self) -> str:
        """What a join that is created now will decide about; it differs in each round."""
        return f"{self.status} {self.round}"


class PartTally(NamedTuple):
    """How many partitions of a step have which status, and what they have done."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    running: int = 0
    compensated: int = 0
    counts: RowCounts = RowCounts()


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a partition leaves to reduce."""

    partition_no: int
    low: str | None
    high: str | None
    status: Status
    state: dict[str, Any]
    """``ctx.state`` as its last chunk left it."""
    counts: RowCounts


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that failed and was left out."""

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
    """How many of its tasks wait or run."""
    at: datetime | None = None
    """When this was read, by the database's clock."""

    @property
    def is_lost(self) -> bool:
        """Whether its status says that it runs, but no task of it is left."""
        return self.batch.status in {BatchStatus.RUNNING, BatchStatus.STOPPING} and not self.alive
