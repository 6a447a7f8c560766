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
    """What a create has done."""

    CREATED = "created"
    EXISTING = "existing"  # nothing was written: the key is taken
    REPLACED = "replaced"  # the holder now has this payload
    RESCHEDULED = "rescheduled"  # the holder is now due when this task would have been


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

    QUEUED = "queued"  # while it is PENDING: the key is free as soon as the task runs
    QUEUED_OR_RUNNING = "queued_or_running"
    UNTIL_TERMINAL = "until_terminal"  # the same: while it is in the pending pool, as retries are
    FOR_PERIOD = "for_period"  # for a time from its creation, even if it ends earlier
    FOREVER = "forever"


class OnConflict(StrEnum):
    """What a create does if its key is taken."""

    RETURN_EXISTING = "return_existing"
    REPLACE_PAYLOAD = "replace_payload"  # of the holder, if it is PENDING
    RESCHEDULE = "reschedule"  # the holder, if it is PENDING (debounce)
    RAISE = "raise"


class KeyRule(NamedTuple):
    scope: Scope = Scope.UNTIL_TERMINAL
    on_conflict: OnConflict = OnConflict.RETURN_EXISTING
    period: timedelta | None = None  # for the scope for_period
    max_wait: timedelta | None = None  # after its creation the holder is rescheduled no further

    @property
    def outlives_the_index(self) -> bool:
        """Whether the key is a row of the table of keys; other keys are columns of their tasks."""
        return self.scope in {Scope.QUEUED, Scope.FOR_PERIOD, Scope.FOREVER}


class RowTemplate(NamedTuple):
    """The columns that many rows share. Durations count from the insert."""

    name: str
    queue: str
    priority: int
    headers: str | None  # JSON text
    enabled: bool
    retry_level: int
    max_attempts: int | None
    retry: str | None
    run_at: datetime | None
    delay: timedelta
    expires_at: datetime | None
    timeout_ms: int | None
    hard_timeout_ms: int | None
    schedule_id: int | None = None  # of the schedule that created it
    batch_id: int | None = None  # of the group whose member it is
    fair_key: str | None = None
    more_limit_keys: str | None = None  # all but the first, as an array in PostgreSQL's text form
    locks: str | None = None  # JSON text of its own, not its handler's
    weight: int | None = None
    order_skips: bool | None = None  # True: the order_key's policy is `skips`
    strict_order: bool = False  # producers of the order_key take turns
    rule: KeyRule | None = None  # for the unique_key, if scope or policy was given
    encrypted: bool = False  # its handler requires an encrypted payload


class TaskRow(NamedTuple):
    """A checked task, ready for the insert: its own columns, and the shared ones."""

    payload: str  # JSON text
    biz_key: str | None
    unique_key: str | None
    order_key: str | None
    limit_key: str | None
    terms: RowTemplate  # shared by rows with the same options

    @property
    def name(self) -> str:
        return self.terms.name


KEYS = TaskRow._fields[1:-1]  # a row's own columns but the payload


def row_as_json(row: TaskRow) -> dict[str, Any]:
    """Return what :func:`row_of_json` makes a row of, without payload and a key's rule."""
    terms = row.terms._replace(rule=None)._asdict()
    terms |= {name: terms[name] and terms[name].isoformat() for name in _INSTANTS}
    terms["delay"] = terms["delay"].total_seconds()
    return {**{key: getattr(row, key) for key in KEYS}, "terms": terms}


def row_of_json(plain: dict[str, Any]) -> TaskRow:
    terms = dict(plain["terms"])
    terms |= {n: terms[n] and datetime.fromisoformat(terms[n]) for n in _INSTANTS}
    terms["delay"] = timedelta(seconds=terms["delay"])
    return TaskRow._make(("{}", *(plain[key] for key in KEYS), RowTemplate(**terms)))


_INSTANTS = ("run_at", "expires_at")


@dataclass(frozen=True, slots=True)
class Task:
    """A task in any pool."""

    id: int
    pool: str
    state: State
    name: str
    queue: str
    priority: int
    biz_key: str | None
    unique_key: str | None
    payload: Any  # decoded JSON, or None if it cannot be decoded
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
    parked: str | None  # why a due row waits, for instance an unknown handler
    result: Any
    error: str | None
    run_ms: int | None
    group_id: int | None = None  # the group that it is a member of
    fingerprint: str | None = None
    """The fingerprint of its error, in the error pool: 16 hexadecimal digits."""
    order_key: str | None = None  # tasks of one key run one at a time
    limit_key: str | None = None  # counts against the limit of this key; of several keys the first
    held: bool = False  # until it is released; `due_at` is the date that it will have then
    sub_status: str | None = None  # the sub-status that its handler set
    updated_at: datetime | None = None
    """When it was last created, claimed, returned, ended, changed or asked to stop."""
    more_limit_keys: list[str] | None = None  # its other limit keys
    waits_for: int | None = (
        None  # how many needs, steps of its flow and events, are open; None: none
    )
    weight: int | None = None  # tokens that its start takes from its limit keys' rates; None: one


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
    fingerprint: str | None = None  # of its error; None: written by older code
    encrypted_message: str | None = None  # the token of an encrypted task's message


SCOPES = ", ".join(f"{s} 1h" if s is Scope.FOR_PERIOD else s for s in Scope)
POLICIES = ", ".join(OnConflict)


def parse_rule(scope: object, on_conflict: object, max_wait: object = None) -> KeyRule | None:
    """Return the rule; None: neither scope nor policy is given.

    Raises ValueError(option, problem, allowed).
    """
    if max_wait is not None and on_conflict != OnConflict.RESCHEDULE:
        raise ValueError("max_wait", "bounds what is rescheduled", "with on_conflict='reschedule'")
    if scope is None and on_conflict is None:
        return None
    scope = Scope.UNTIL_TERMINAL if scope is None else scope
    if not isinstance(scope, str):
        raise ValueError("unique_scope", f"is of type {type(scope).__name__}", SCOPES)
    name, _, span = scope.partition(" ")
    if name not in set(Scope) or bool(span) != (name == Scope.FOR_PERIOD):
        raise ValueError("unique_scope", "is not a scope", SCOPES)
    period = _positive_span("unique_scope", span, SCOPES) if span else None
    policy = OnConflict.RETURN_EXISTING if on_conflict is None else on_conflict
    if not isinstance(policy, str) or policy not in set(OnConflict):
        raise ValueError("on_conflict", "is not a policy", POLICIES)
    longest = None if max_wait is None else _positive_span("max_wait", max_wait, "such as '1m'")
    return KeyRule(Scope(name), OnConflict(policy), period, longest)


def _positive_span(option: str, value: Any, allowed: str) -> timedelta:
    try:
        span = parse_duration(value)
    except ValueError as error:
        raise ValueError(option, str(error), allowed) from None
    if not span:
        raise ValueError(option, "has a period of 0", allowed)
    return span


def text_array(values: Iterable[object]) -> str:
    """Return an array of texts, with any characters in them, in PostgreSQL's text form."""
    listed = list(map(str, values))
    if not listed:
        return "{}"
    separator = "\0"  # in no text of PostgreSQL
    text = separator.join(listed).replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + text.replace(separator, '","') + '"}'
