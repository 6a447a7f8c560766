"""A run of a task: its fence, what was claimed, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from typing import TypeVar

    from tasks_app.domain.tasks.states import Event

    P = TypeVar("P")


class Run(NamedTuple):
    """One attempt of one task; what a slot remembers."""

    task_id: int
    attempt: int


class Fence(NamedTuple):
    """What every write of a run must match; a stale one changes nothing."""

    task_id: int
    attempt: int
    token: UUID


class ClaimedTask(NamedTuple):
    """A row that this child now owns, until its lease is over.

    The order is that in which a claim returns them: a child makes tens of thousands a second.
    """

    fence: Fence
    name: str
    queue: str
    biz_key: str | None
    payload: str | None
    """JSON text; None when it is large and has to be fetched on its own."""
    headers: str | None
    failures: int
    crashes: int
    retry_level: int
    max_attempts: int
    at_most_once: bool
    retry: str | None
    timeout_ms: int | None
    hard_timeout_ms: int | None
    key_text: str
    created_s: float
    """Instants in seconds since 1970, and the key in its text: few handlers ask for them."""
    due_s: float
    cancel_requested: bool
    in_group: bool = False
    """Its end is counted."""

    @property
    def idempotency_key(self) -> UUID:
        """The same at every attempt."""
        return UUID(self.key_text)

    @property
    def created_at(self) -> datetime:
        """When the task was created."""
        return datetime.fromtimestamp(self.created_s, UTC)

    @property
    def due_at(self) -> datetime:
        """Since when this run could start."""
        return datetime.fromtimestamp(self.due_s, UTC)

    @property
    def task_id(self) -> int:
        """The id alone."""
        return self.fence.task_id

    @property
    def runs_alone(self) -> bool:
        """Whether nothing else may run in its process: its crash must have one suspect."""
        return self.at_most_once or self.crashes > 0

    @property
    def run(self) -> Run:
        """Which run of which task this is."""
        return tuple.__new__(Run, self.fence[:2])  # each run asks, and the class takes longer

    def __repr__(self) -> str:
        return f"<claimed task {self.task_id} ({self.name}), attempt {self.fence.attempt}>"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt did not succeed: clean text of bounded length, never a payload."""

    kind: str
    """The exception's qualified name, or one of our own words such as ``process died``."""
    message: str
    traceback: str | None = None
    """Frames and lines without local variables."""


class Settlement(NamedTuple):
    """What is to become of one run, decided; the pool only carries it out under the fence.

    A task whose cancellation was asked for meanwhile is CANCELLED instead of PENDING or FAILED.
    """

    fence: Fence
    event: Event
    failures: int
    retry_level: int
    wait: timedelta | None = None
    """For events that lead back to PENDING: from the write on, by the database's clock."""
    crashes: int | None = None
    """None: as they are."""
    result: str | None = None
    """JSON text."""
    cause: Cause | None = None
    run_ms: int | None = None
    """How long the handler ran, by the worker's monotonic clock."""
    task: ClaimedTask | None = None
    """Whose run it was, for those who are told of it; the write needs the fence alone."""
