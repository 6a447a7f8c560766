"""A run of a task: its fence, what was claimed, how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from tasks_app.domain.tasks.states import Event


class Run(NamedTuple):
    """One attempt of one task, as a slot of the scoreboard records it."""

    task_id: int
    attempt: int


class Fence(NamedTuple):
    """Every write of a run must match it; with a stale fence a write changes nothing."""

    task_id: int
    attempt: int
    token: UUID


class ClaimedTask(NamedTuple):
    """A row that this child owns until its lease ends.

    The fields are in the order of a claim's columns: a child makes tens of thousands per second.
    """

    fence: Fence
    name: str
    queue: str
    biz_key: str | None
    payload: str | None  # JSON text; None: it is large, and fetched separately
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
    created_s: float  # seconds since 1970, and the key as text: few handlers use them
    due_s: float
    cancel_requested: bool
    group_id: int | None = None  # the group, or flow, that counts its end

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
        """Whether nothing else may run in its process, so that a crash has one possible cause."""
        return self.at_most_once or self.crashes > 0

    @property
    def run(self) -> Run:
        return tuple.__new__(Run, self.fence[:2])  # hot path: faster than calling the class

    def __repr__(self) -> str:
        return f"<claimed task {self.task_id} ({self.name}), attempt {self.fence.attempt}>"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt did not succeed: clean text of limited length, never a payload."""

    kind: str  # the exception's qualified name, or one of our own words, as "process died"
    message: str
    traceback: str | None = None  # frames and lines, without local variables
    encrypted: str | None = None  # the token of the message, if it replaces it


class Settlement(NamedTuple):
    """The outcome of one run; the pool writes it under the fence.

    A task whose cancellation was requested meanwhile is CANCELLED instead of PENDING or FAILED.
    """

    fence: Fence
    event: Event
    failures: int
    retry_level: int
    wait: timedelta | None = None  # before the next attempt, from the write by the database's clock
    crashes: int | None = None  # None: unchanged
    result: str | None = None  # JSON text
    cause: Cause | None = None
    run_ms: int | None = None  # of the handler, by the worker's monotonic clock
    task: ClaimedTask | None = None  # for hooks, logs and counters; the write needs only the fence
    began: float | None = None  # monotonic start of the handler; None: it did not return
    sub_status: str | None = None  # set by the run; None: not set
    is_kept: bool = True  # False: the row of this success is deleted, not moved
    writes: tuple[tuple[str, Any], ...] = ()  # SQL of the handler that commits together with this
    awaits_needs: bool = False  # it goes back until its needs are met, which it has entered
    unsure: bool = False  # a COMMIT got no answer: if its fence is stale, it may have succeeded
