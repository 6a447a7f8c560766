"""The records that travel between the rooms."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from tasks_app.domain.tasks.unique_key import CreateOutcome

if TYPE_CHECKING:
    from typing import TypeVar

    from tasks_app.domain.tasks.states import State
    from tasks_app.domain.tasks.unique_key import KeyRule

    P = TypeVar("P")

HINT_WAIT = timedelta(seconds=3)
"""How long the scan leaves a new row to its hint. Long enough for a worker that is busy just now,
short enough that nobody misses the task whose hint was lost."""


class TaskId(int):
    """A task's id that also says whether this call made the task.

    ``created`` is False when another task already holds the same name and unique_key; the id is
    then that task's, and ``outcome`` says what became of it.
    """

    created: bool = True
    outcome: CreateOutcome = CreateOutcome.CREATED

    @classmethod
    def held(cls, value: int, outcome: CreateOutcome = CreateOutcome.EXISTING) -> Self:
        """Return the id of a task that was there before."""
        self = cls(value)
        self.created = False
        self.outcome = outcome
        return self


class RowTemplate(NamedTuple):
    """What a task has in common with many others. Spans are from the insert on."""

    name: str
    queue: str
    priority: int
    headers: str | None
    """JSON text."""
    enabled: bool
    retry_level: int
    max_attempts: int | None
    retry: str | None
    run_at: datetime | None
    delay: timedelta
    expires_at: datetime | None
    timeout_ms: int | None
    hard_timeout_ms: int | None
    hint_wait: timedelta = timedelta(0)
    """How long the scan leaves the row alone, because a hint is on its way."""
    schedule_id: int | None = None
    """Which schedule made it."""
    batch_id: int | None = None
    """The group whose member it is."""
    fair_key: str | None = None
    """Whose share of a fair queue it is part of."""
    order_skips: bool | None = None
    """The order_key's policy is ``skips``."""
    strict_order: bool = False
    """Producers of the order_key take turns."""
    rule: KeyRule | None = None
    """Scope and policy of the unique_key, where either was given."""


class TaskRow(NamedTuple):
    """A checked task, ready to be inserted: what it has for itself, and its terms."""

    payload: str
    """JSON text."""
    biz_key: str | None
    unique_key: str | None
    order_key: str | None
    limit_key: str | None
    terms: RowTemplate
    """Rows that were admitted on the same terms share one object."""

    @property
    def name(self) -> str:
        """The task's name."""
        return self.terms.name


KEYS = TaskRow._fields[1:-1]
"""What a row may have for itself beside its payload."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task as people see it, from whichever pool it lies in."""

    id: int
    pool: str
    state: State
    name: str
    queue: str
    priority: int
    biz_key: str | None
    unique_key: str | None
    payload: Any
    """Decoded JSON, or None when it cannot be decoded."""
    headers: Any
    enabled: bool
    attempt: int
    failures: int
    crashes: int
    retry_level: int
    max_attempts: int | None
    due_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    cancel_requested_at: datetime | None
    idempotency_key: UUID
    owner: str | None
    lease_until: datetime | None
    parked: str | None
    """Why a due row waits all the same, such as an unknown handler."""
    result: Any
    error: str | None
    run_ms: int | None
    group_id: int | None = None
    """The group that waits for it, as for others."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that did not succeed, as the history keeps it."""

    task_id: int
    attempt: int
    event: str
    kind: str
    message: str
    traceback: str | None
    owner: str | None
    started_at: datetime | None
    ended_at: datetime
