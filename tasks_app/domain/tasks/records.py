"""A task's row before its insert, and the task and its attempts as read back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from tasks_app.domain.tasks.states import State
from tasks_app.domain.tasks.unique_key import CreateOutcome

if TYPE_CHECKING:
    from tasks_app.domain.tasks.unique_key import KeyRule


class TaskId(int):
    """A task's id that also says whether this call created the task.

    ``created`` is False if another task already has the same name and unique_key; then the id is
    that task's, and ``outcome`` says what was done to it.
    """

    created: bool = True
    outcome: CreateOutcome = CreateOutcome.CREATED

    @classmethod
    def held(cls, value: int, outcome: CreateOutcome = CreateOutcome.EXISTING) -> Self:
        self = cls(value)
        self.created = False
        self.outcome = outcome
        return self


class RowTemplate(NamedTuple):
    """The columns that many rows share. Durations count from the insert."""

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
    schedule_id: int | None = None
    """The schedule that made it."""
    batch_id: int | None = None
    """The group whose member it is."""
    fair_key: str | None = None
    """Whose share of a fair queue it belongs to."""
    more_limit_keys: str | None = None
    """Its limit keys behind the first, as PostgreSQL writes an array."""
    order_skips: bool | None = None
    """True: the order_key's policy is ``skips``."""
    strict_order: bool = False
    """Producers of the order_key take turns."""
    rule: KeyRule | None = None
    """Scope and policy of the unique_key, if either was given."""
    encrypted: bool = False
    """Its handler asks for its payload to be stored encrypted."""


class TaskRow(NamedTuple):
    """A checked task, ready for the insert: its own columns, and the shared ones."""

    payload: str
    """JSON text."""
    biz_key: str | None
    unique_key: str | None
    order_key: str | None
    limit_key: str | None
    terms: RowTemplate
    """Rows with the same options share one object."""

    @property
    def name(self) -> str:
        return self.terms.name


KEYS = TaskRow._fields[1:-1]
"""A row's own columns but the payload."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task as people see it, in any pool."""

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
    """Why a due row waits, for instance an unknown handler."""
    result: Any
    error: str | None
    run_ms: int | None
    group_id: int | None = None
    """The group whose member it is."""
    fingerprint: str | None = None
    """Of its error, in the error pool: 16 hexadecimal digits."""
    order_key: str | None = None
    """Tasks of one key run one at a time."""
    limit_key: str | None = None
    """What it counts against, where there is a limit of that key; of several keys the first."""
    held: bool = False
    """It does not run until it is released; ``due_at`` is the date that it gets back then."""
    sub_status: str | None = None
    """What its handler said of its state."""
    updated_at: datetime | None = None
    """When it was last created, claimed, returned, ended, changed or asked to stop."""
    more_limit_keys: list[str] | None = None
    """Its other limit keys."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A row of the history: an attempt that did not succeed."""

    task_id: int
    attempt: int
    event: str
    kind: str
    message: str
    traceback: str | None
    owner: str | None
    started_at: datetime | None
    ended_at: datetime
    fingerprint: str | None = None
    """Of its error; None: it was written by older code."""
    encrypted_message: str | None = None
    """The token of the message, of an encrypted task."""
