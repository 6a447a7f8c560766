"""All that is known of one task at one moment, for rules to judge."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tasks_app.domain.coordination.groups import GroupProgress
from tasks_app.domain.flow_control.circuit_breaker import Standing
from tasks_app.domain.flow_control.limits import Limit
from tasks_app.domain.queues.queue import Queue
from tasks_app.domain.tasks.states import Pool, State, pool_of

MOST_AHEAD = 10_000
"""So many tasks in front of it are counted, no more."""
HEARTBEAT_TAKES = timedelta(seconds=1)
"""A heartbeat may be so late before its child is called silent."""


@dataclass(frozen=True, slots=True)
class Row:
    """The task's row, without its data."""

    id: int
    state: State
    name: str
    queue: str
    priority: int
    enabled: bool
    attempt: int
    failures: int
    crashes: int
    retry_level: int
    max_attempts: int | None
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    cancel_requested_at: datetime | None
    owner: str | None
    lease_until: datetime | None
    parked: str | None
    error: str | None
    run_ms: int | None
    scan_at: datetime | None
    """When the scan looks at it next; None: it is over."""
    at_most_once: bool | None
    order_key: str | None
    limit_key: str | None
    outages: int | None
    """Attempts that met something which was down, uncharged."""
    outage_since: datetime | None

    @property
    def is_over(self) -> bool:
        """Whether it lies in a terminal pool."""
        return pool_of(self.state) is not Pool.PENDING


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """The newest line of its history."""

    attempt: int
    event: str
    kind: str
    message: str
    ended_at: datetime

    @property
    def cause(self) -> str:
        """Kind and message in one line."""
        first = (self.message.splitlines() or [""])[0]
        return f"{self.kind}: {first}" if first else self.kind


@dataclass(frozen=True, slots=True)
class Stop:
    """An operator's pause of its queue."""

    queue: str
    """``*``: every queue."""
    since: datetime
    reason: str
    resume_at: datetime | None = None
    """When it ends by itself."""


@dataclass(frozen=True, slots=True)
class Denial:
    """A lock that its last run could not have."""

    resource: str
    by: str | None
    """Who was in the way."""
    times: int
    since: datetime
    at: datetime
    held: bool
    """Somebody holds it now."""


@dataclass(frozen=True, slots=True)
class Message:
    """The row of the ledger that holds it."""

    id: int
    tasks: int
    created_at: datetime
    publishes: int
    publish_at: datetime
    """When it goes out again, if nobody finishes it."""


@dataclass(frozen=True, slots=True)
class Service:
    """The living children, as their heartbeats tell."""

    children: int = 0
    """That serve the queue."""
    knowing: int = 0
    """That serve it and have a handler of this name."""
    busy: int = 0
    """That serve it and ran something at their last heartbeat."""
    names: tuple[str, ...] = ()
    """Handlers of those that serve the queue."""
    elsewhere: tuple[str, ...] = ()
    """Queues of those that have a handler of this name."""
    last_seen: datetime | None = None
    """Of whoever served the queue, alive or not."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Who looked for due tasks last."""

    holder: str
    done_at: datetime | None
    refused_since: datetime | None = None
    """Since when the broker takes no messages; None: it does."""
    refused_because: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the child that runs it said in its last heartbeat."""

    node: str
    fraction: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """Who has the task's order key; None: nobody else."""

    running: int | None
    """It runs."""
    first: int | None
    """It is due, or waits to be tried again, and has a lower id."""
    failed: int | None
    """It failed for good, has a lower id, and blocks."""


@dataclass(frozen=True, slots=True)
class Shut:
    """A limit that is reached."""

    limit: Limit
    key: str
    """Which queue, name or limit key it is of."""
    running: int


@dataclass(frozen=True, slots=True)
class Facts:
    """One task, and what stands around it; ``row`` None: there is no such task."""

    task_id: int
    now: datetime
    """The database's clock."""
    row: Row | None
    last: LastAttempt | None = None
    stop: Stop | None = None
    denial: Denial | None = None
    queue: Queue | None = None
    """What else is said of its queue."""
    breaker: Standing | None = None
    """That of what its handler depends on, unless it is closed."""
    message: Message | None = None
    service: Service = Service()
    scan: Scan | None = None
    progress: Progress | None = None
    heard_at: datetime | None = None
    """The last heartbeat of the child that runs it."""
    turn: Turn | None = None
    """None: it has no order key, or is not due."""
    shut: tuple[Shut, ...] = ()
    member_of: GroupProgress | None = None
    callback_of: GroupProgress | None = None
    """The group that called it, or will when its last member has ended."""
    ahead: int | None = None
    """Tasks that go first; at most ``MOST_AHEAD`` + 1. None: not counted."""
    late_after: timedelta = timedelta(minutes=1)
    """What is due for longer, or was not scanned for so long, is late."""
    beats_every: timedelta = timedelta(seconds=10)
    """How often a child that lives is heard of."""

    @property
    def waiting(self) -> Row | None:
        """The row, if it is PENDING."""
        return self.row if self.row is not None and self.row.state is State.PENDING else None

    @property
    def due(self) -> Row | None:
        """The row, if it is PENDING, due and may run."""
        row = self.waiting
        return row if row and row.due_at <= self.now and not self.barred else None

    @property
    def ready(self) -> Row | None:
        """The row, if it is due and a living child may run it now."""
        stands_still = self.stop or self.breaker or (self.queue and not self.queue.runs)
        return self.due if self.service.knowing and not stands_still else None

    @property
    def barred(self) -> bool:
        """Whether it will not run when it is looked at: disabled, or expired."""
        row = self.row
        return row is not None and (
            not row.enabled or (row.expires_at is not None and row.expires_at <= self.now)
        )

    @property
    def silent(self) -> timedelta | None:
        """For how long a heartbeat of the child that runs it is missing; None: none is."""
        span = self.now - self.heard_at if self.heard_at else timedelta(0)
        return span if span > self.beats_every + HEARTBEAT_TAKES else None

    @property
    def refused_since(self) -> datetime | None:
        """Since when nothing is published, as who scans says; None: it is, or nobody scans."""
        return None if self.unscanned or self.scan is None else self.scan.refused_since

    @property
    def unscanned(self) -> bool:
        """Whether nobody has looked for due tasks lately."""
        done_at = self.scan.done_at if self.scan else None
        return done_at is None or self.now - done_at > self.late_after
