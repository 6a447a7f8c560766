"""The records that travel between the rooms."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict
from uuid import UUID

from tasks_app.domain.tasks.unique_key import CreateOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal, TypeVar

    from tasks_app.domain.durations import Duration
    from tasks_app.domain.tasks.retry_policy import RetryPolicy
    from tasks_app.domain.tasks.states import Event, State
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


class TaskOptions(TypedDict, total=False):
    """What ``create_task`` accepts beside a name and a payload; None is as good as left out."""

    queue: str | None
    """Default: the handler's queue where it is known, else ``default``."""
    priority: int | None
    """0 is first, 9 last; default 5."""
    run_at: datetime | None
    """Not before this aware instant. Excludes ``delay``."""
    delay: Duration | None
    """Not before this long after the insert, by the database's clock."""
    biz_key: str | None
    """The business object that the task is about, such as ``order:42``; searchable, not unique."""
    unique_key: str | None
    """At most one pending or running task of this name has it, or as ``unique_scope`` says."""
    unique_scope: str | None
    """``queued``, ``queued_or_running``, ``until_terminal`` (default; the same), ``for_period 1h``
    (or another time), ``forever``: for how long the key is taken."""
    on_conflict: Literal["return_existing", "replace_payload", "reschedule", "raise"] | None
    """When the key is taken: ``return_existing`` (default), ``replace_payload``, ``reschedule``,
    ``raise``."""
    fair_key: str | None
    """In a fair queue: whose share it is part of, such as a tenant's."""
    order_key: str | None
    """Tasks with one such key run one at a time; among those that are due the lowest id first."""
    order_policy: Literal["blocks", "skips"] | None
    """While a task of the key waits to be tried again, or has failed for good: ``blocks`` (default;
    those behind it wait) or ``skips`` (they go on)."""
    strict_order: bool | None
    """True: producers of the key take turns, each until its commit, so that ids rise in the order
    of the commits."""
    limit_key: str | None
    """Counts against the limit that an operator has set for such keys, if there is one."""
    max_attempts: int | None
    """How many charged failures lead to the error pool; default: the policy's."""
    retry: str | Sequence[Duration] | RetryPolicy | None
    """The retry policy; default: the handler's."""
    wait_first: bool | None
    """Already the first run waits level 1 of the policy."""
    timeout: Duration | None
    """Raised inside the handler after this long."""
    hard_timeout: Duration | None
    """The child that runs the task is killed after this long."""
    expires_at: datetime | None
    """A task that becomes due later than this is not run but EXPIRED."""
    enabled: bool | None
    """False: when due, the task is SKIPPED."""
    headers: Mapping[str, Any] | None
    """Small JSON object that travels with the task, for tracing and the like."""


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
