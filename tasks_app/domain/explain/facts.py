"""All that is known of one task and of what surrounds it at one moment; the rules read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from tasks_app.domain.durations import instant_in_words
from tasks_app.domain.flow_control.circuit_breaker import BreakerStanding
from tasks_app.domain.flow_control.limits import Limit
from tasks_app.domain.groups import GroupProgress
from tasks_app.domain.queues import Queue
from tasks_app.domain.statistics import Unkept
from tasks_app.domain.tasks.states import Pool, State, pool_of

MOST_AHEAD = 10_000
"""At most this many tasks in front of it are counted."""
ANOTHER_LEADS_AFTER = timedelta(seconds=10)
"""By then another process has taken the lead, if there is one."""
HEARTBEAT_TAKES = timedelta(seconds=1)
"""How late a heartbeat may be before its child counts as silent."""


@dataclass(frozen=True, slots=True)
class StoredRow:
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
    """When the scan reads it next; None: it is over."""
    at_most_once: bool | None
    order_key: str | None
    limit_key: str | None
    more_limit_keys: list[str] | None
    outages: int | None
    """Uncharged attempts that met something that was down."""
    outage_since: datetime | None
    own_date: datetime | None
    """When it is due if it is not held."""
    held: bool

    @property
    def is_over(self) -> bool:
        """Whether it is in a terminal pool."""
        return pool_of(self.state) is not Pool.PENDING


@dataclass(frozen=True, slots=True)
class Service:
    """The living children, from their heartbeats."""

    children: int = 0
    """How many serve the queue."""
    knowing: int = 0
    """How many of them have a handler of this name."""
    busy: int = 0
    """How many of them ran something at their last heartbeat."""
    names: tuple[str, ...] = ()
    """Handlers of the children that serve the queue."""
    elsewhere: tuple[str, ...] = ()
    """Queues of the children that have a handler of this name."""
    last_seen: datetime | None = None
    """The last heartbeat of any child that served the queue, alive or not."""
    heard_at: datetime | None = None
    """The last heartbeat of any child."""
    scanning: int = 0
    """Children of ``tasks-app work``, of any queue: each looks for what is due when it has room."""


class RunBy(StrEnum):
    """Whose children live, or did last; advice names no other."""

    CELERY = "celery"
    WORK = "work"
    EITHER = "either"
    """Both, or nobody was heard of yet."""

    @property
    def scanner(self) -> str:
        """What looks for due tasks, to be started."""
        return self._of("beat (celery -A tasks_app beat) and a worker", "tasks-app work", ", or ")

    @property
    def start_scan(self) -> str:
        return f"Start {self.scanner}, and read its log."

    def start_worker(self, queue: str = "") -> str:
        """Say how, for this queue or for those of the handlers."""
        celery = f"celery -A tasks_app worker -E{queue and f' -Q {queue}'}"
        work = f"tasks-app work{queue and f' -q {queue}'}"
        return f"Start one: {self._of(celery, work, ', or without a broker: ')}"

    def _of(self, celery: str, work: str, between: str) -> str:
        return {self.CELERY: celery, self.WORK: work}.get(self, f"{celery}{between}{work}")


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """The newest row of its history."""

    attempt: int
    event: str
    kind: str
    message: str
    ended_at: datetime

    @property
    def cause(self) -> str:
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
class StandingHold:
    """An operator's wish that it waits until it is released."""

    since: datetime
    by: str
    why: str | None


@dataclass(frozen=True, slots=True)
class Denial:
    """A lock that its last run could not get."""

    resource: str
    by: str | None
    """Who held it, or waited for it."""
    times: int
    since: datetime
    at: datetime
    held: bool
    """Whether somebody holds it now."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The last scan for due tasks."""

    holder: str
    done_at: datetime | None
    refused_since: datetime | None = None
    """Since when the broker takes no messages; None: it takes them."""
    refused_because: str = ""
    held_until: datetime | None = None
    """How long the lead is held; None: it was given back."""
    messages: int = 0
    """How many messages of the task's queue it saw in the broker."""


@dataclass(frozen=True, slots=True)
class ConnectionLimit:
    """How many connections a role that may run tasks, or the database, is allowed."""

    of: str
    """Such as ``role app``."""
    most: int
    used: int

    def is_tight(self, needed: int) -> bool:
        return self.used >= self.most or needed > self.most


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """The run's progress in its child's last heartbeat."""

    node: str
    fraction: float | None = None
    note: str | None = None
    killed_at: datetime | None = None
    """When its hard limit ends its process."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The task that has the task's order key, by what it does; None: there is no such task."""

    running: int | None
    """It runs."""
    first: int | None
    """It has a lower id, and is due or waits for a retry."""
    failed: int | None
    """It has a lower id, failed for good, and blocks."""


@dataclass(frozen=True, slots=True)
class Shut:
    """A limit that is reached."""

    limit: Limit
    key: str
    """The queue, name or limit key that it counts."""
    running: int


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task and its surroundings; ``row`` None: there is no such task."""

    task_id: int
    now: datetime
    """The database's clock."""
    row: StoredRow | None
    unkept: Unkept | None = None
    """Successes that left no row; read if the task has none."""
    last: LastAttempt | None = None
    stop: Stop | None = None
    denial: Denial | None = None
    hold: StandingHold | None = None
    """Who holds it; None: nobody, or the audit does not tell."""
    queue: Queue | None = None
    """Its queue's settings, if it has any."""
    breaker: BreakerStanding | None = None
    """The breaker of its handler's dependency, unless it is closed."""
    service: Service = field(default_factory=Service)
    run_by: RunBy = RunBy.EITHER
    scan: Scan | None = None
    progress: ReportedProgress | None = None
    heard_at: datetime | None = None
    """The last heartbeat of the child that runs it."""
    turn: Turn | None = None
    """None: it has no order key, or is not due."""
    shut: tuple[Shut, ...] = ()
    member_of: GroupProgress | None = None
    callback_of: GroupProgress | None = None
    """The group whose callback it is."""
    connections: tuple[ConnectionLimit, ...] = ()
    """Limits of connections; read of a task that is due."""
    ahead: int | None = None
    """Tasks that go first; at most ``MOST_AHEAD`` + 1. None: not counted."""
    late_after: timedelta = timedelta(minutes=1)
    """A task that is due for longer is late; so is a scan."""
    beats_every: timedelta = timedelta(seconds=10)
    """The interval of a child's heartbeats."""

    @property
    def waiting(self) -> StoredRow | None:
        return self.row if self.row is not None and self.row.state is State.PENDING else None

    @property
    def due(self) -> StoredRow | None:
        """The row, if it is PENDING, due and not barred."""
        row = self.waiting
        return row if row and row.due_at <= self.now and not self.barred else None

    @property
    def ready(self) -> StoredRow | None:
        """The row, if it is due and a living child may run it now."""
        stands_still = self.stop or self.breaker or (self.queue and not self.queue.runs)
        return self.due if self.service.knowing and not stands_still else None

    @property
    def barred(self) -> bool:
        """Whether the next scan ends it: it is disabled or expired."""
        row = self.row
        return row is not None and (
            not row.enabled or (row.expires_at is not None and row.expires_at <= self.now)
        )

    @property
    def silent(self) -> timedelta | None:
        """For how long its child's heartbeat has been missing; None: it is not."""
        span = self.now - self.heard_at if self.heard_at else timedelta(0)
        return span if span > self.beats_every + HEARTBEAT_TAKES else None

    @property
    def refused_since(self) -> datetime | None:
        """Since when nothing is published, says the scan; None: it is, or nobody scans."""
        published = self.run_by is not RunBy.WORK and not self.unscanned
        return self.scan.refused_since if published and self.scan is not None else None

    @property
    def unscanned(self) -> bool:
        """Whether nobody has scanned lately, or nobody is left who could."""
        if self.service.scanning and self._heard:
            return False
        done_at = self.scan.done_at if self.scan else None
        return done_at is None or self.now - done_at > self.late_after or self.deserted

    @property
    def nobody_scans(self) -> str:
        """Say so, and since when."""
        scan = self.scan
        if scan is None or scan.done_at is None:
            return "Nobody has ever looked for due tasks"
        last = instant_in_words(scan.done_at, self.now)
        return f"Nobody looks for due tasks; {scan.holder} did last, {last}"

    @property
    def deserted(self) -> bool:
        """Whether the lead is free, and no child has been heard of that could take it."""
        scan = self.scan
        if scan is None or scan.done_at is None:
            return False
        free_since = max(scan.done_at, scan.held_until or scan.done_at)
        return self.now - free_since > ANOTHER_LEADS_AFTER and not self._heard

    @property
    def _heard(self) -> bool:
        """Whether any child was heard of in time."""
        at = self.service.heard_at
        return at is not None and self.now - at <= self.beats_every + HEARTBEAT_TAKES
