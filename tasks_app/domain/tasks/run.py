"""A run of a task: its fence, what was claimed, how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from tasks_app.domain.tasks.states import Event


class Run(NamedTuple):
    """One attempt of one task, as a slot of the scoreboard records it."""

    task_id: int
    attempt: int


class Fence(NamedTuple):
    """What every write of a run must match; with a stale fence a write changes nothing."""

    task_id: int
    attempt: int
    token: UUID


class ClaimedTask(NamedTuple):
    """A row that this child owns until its lease is over.

    The fields are in the order in which a claim returns them: a child makes tens of thousands of
    these a second.
    """

    fence: Fence
    name: str
    queue: str
    biz_key: str | None
    payload: str | None
    """JSON text; None: it is large and is fetched separately."""
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
    """Instants are seconds since 1970, and the key is text: few handlers ask for them."""
    due_s: float
    cancel_requested: bool
    in_group: bool = False
    """A group counts its end."""

    @property
    def idempotency_key(self) -> UUID:
        return UUID(self.key_text)

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(self.created_s, UTC)

    @property
    def due_at(self) -> datetime:
        return datetime.fromtimestamp(self.due_s, UTC)

    @property
    def task_id(self) -> int:
        return self.fence.task_id

    @property
    def runs_alone(self) -> bool:
        """Whether nothing else may run in its process, so that a crash has one suspect."""
        return self.at_most_once or self.crashes > 0

    @property
    def run(self) -> Run:
        return tuple.__new__(Run, self.fence[:2])  # hot path: faster than calling the class

    def __repr__(self) -> str:
        return f"<claimed task {self.task_id} ({self.name}), attempt {self.fence.attempt}>"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt did not succeed: clean text of bounded length, never a payload."""

    kind: str
    """The exception's qualified name, or one of our own words, as ``process died``."""
    message: str
    traceback: str | None = None
    """Frames and lines without local variables."""
    encrypted: str | None = None
    """The token of the message, where that stands for it."""


class Settlement(NamedTuple):
    """The decided end of one run; the pool carries it out under the fence.

    A task whose cancellation was requested meanwhile is CANCELLED instead of PENDING or FAILED.
    """

    fence: Fence
    event: Event
    failures: int
    retry_level: int
    wait: timedelta | None = None
    """For events that lead back to PENDING: counted from the write, by the database's clock."""
    crashes: int | None = None
    """None: unchanged."""
    result: str | None = None
    """JSON text."""
    cause: Cause | None = None
    run_ms: int | None = None
    """How long the handler ran, by the worker's monotonic clock."""
    task: ClaimedTask | None = None
    """For hooks, logs and counters; the write needs the fence alone."""
    began: float | None = None
    """When its handler was called, by the worker's monotonic clock; None: it did not return."""
    sub_status: str | None = None
    """What the run said of the task's state. None: nothing."""
    is_kept: bool = True
    """False: the row of this success is deleted, not moved."""
    writes: tuple[tuple[str, Any], ...] = ()
    """SQL of the handler, with its parameters, that commits together with this or not at all."""
    unsure: bool = False
    """A COMMIT of it was sent and not answered: where its fence is gone, it may stand."""
