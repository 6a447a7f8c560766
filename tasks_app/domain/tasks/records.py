"""A task's row before its insert, its unique key, and the task and attempts as read back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Self
from uuid import UUID

from tasks_app.domain.durations import parse_duration
from tasks_app.domain.tasks.states import State


class CreateOutcome(StrEnum):
    """What a create did."""

    CREATED = "created"
    EXISTING = "existing"
    """Nothing was written: the key is taken."""
    REPLACED = "replaced"
    """The holder now has this payload."""
    RESCHEDULED = "rescheduled"
    """The holder is now due when this task would have been."""


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


class Scope(StrEnum):
    """For how long a task has its unique_key."""

    QUEUED = "queued"
    """While it is PENDING: the key is free as soon as the task runs."""
    QUEUED_OR_RUNNING = "queued_or_running"
    UNTIL_TERMINAL = "until_terminal"
    """The same: while it is in the pending pool, where retries stay, too."""
    FOR_PERIOD = "for_period"
    """For a time from its creation on, even if it ends earlier."""
    FOREVER = "forever"


class OnConflict(StrEnum):
    """What a create does if its key is taken."""

    RETURN_EXISTING = "return_existing"
    REPLACE_PAYLOAD = "replace_payload"
    """Replace the holder's payload, if the holder is PENDING."""
    RESCHEDULE = "reschedule"
    """Reschedule the holder, if it is PENDING (debounce)."""
    RAISE = "raise"


class KeyRule(NamedTuple):
    """Scope and conflict policy of a task's unique_key."""

    scope: Scope = Scope.UNTIL_TERMINAL
    on_conflict: OnConflict = OnConflict.RETURN_EXISTING
    period: timedelta | None = None
    """For the scope ``for_period``."""
    max_wait: timedelta | None = None
    """How long after its creation the holder is due at the latest, however often rescheduled."""

    @property
    def outlives_the_index(self) -> bool:
        """Whether the key is a row of the table of keys; other keys are columns of their tasks."""
        return self.scope in _IN_THE_TABLE


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


_IN_THE_TABLE = frozenset({Scope.QUEUED, Scope.FOR_PERIOD, Scope.FOREVER})
SCOPES = ", ".join(f"{s} 1h" if s is Scope.FOR_PERIOD else s for s in Scope)
POLICIES = ", ".join(OnConflict)


def parse_rule(scope: object, on_conflict: object, max_wait: object = None) -> KeyRule | None:
    """Return the rule; None: neither is given. A time follows ``for_period``.

    Raises:
        ValueError: the first argument names the option, the second what is wrong with it.
    """
    if max_wait is not None and on_conflict != OnConflict.RESCHEDULE:
        raise ValueError("max_wait", "bounds what is rescheduled", "with on_conflict='reschedule'")
    if scope is None and on_conflict is None:
        return None
    kind, period = _scope(Scope.UNTIL_TERMINAL if scope is None else scope)
    policy = OnConflict.RETURN_EXISTING if on_conflict is None else on_conflict
    if not isinstance(policy, str) or policy not in set(OnConflict):
        raise ValueError("on_conflict", "names no policy", POLICIES)
    longest = None if max_wait is None else _span("max_wait", max_wait, "such as '1m'")
    return KeyRule(kind, OnConflict(policy), period, longest)


def _scope(scope: object) -> tuple[Scope, timedelta | None]:
    if not isinstance(scope, str):
        raise ValueError("unique_scope", f"is of type {type(scope).__name__}", SCOPES)
    name, _, span = scope.partition(" ")
    if name not in set(Scope) or bool(span) != (name == Scope.FOR_PERIOD):
        raise ValueError("unique_scope", "names no scope", SCOPES)
    return Scope(name), _span("unique_scope", span, SCOPES) if span else None


def _span(option: str, value: Any, allowed: str) -> timedelta:
    try:
        span = parse_duration(value)
    except ValueError as error:
        raise ValueError(option, str(error), allowed) from None
    if not span:
        raise ValueError(option, "has a period of 0", allowed)
    return span


_BETWEEN = "\0"
"""No text in PostgreSQL holds it."""


def text_array(values: Iterable[object]) -> str:
    """Return a PostgreSQL array of the texts of ``values``, with any characters in them."""
    listed = list(map(str, values))
    if not listed:
        return "{}"
    escaped = (
        _BETWEEN.join(listed).replace("\\", "\\\\").replace('"', '\\"').replace(_BETWEEN, '","')
    )
    return f'{{"{escaped}"}}'
