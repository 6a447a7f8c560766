"""All that is known of one task and of what surrounds it at one moment; the rules read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from tasks_app.domain.durations import instant_in_words
from tasks_app.domain.events import AwaitedEvent
from tasks_app.domain.flow_control.circuit_breaker import StoredBreaker
from tasks_app.domain.flow_control.limits import Limit
from tasks_app.domain.flows import StepOfFlow
from tasks_app.domain.groups import GroupProgress
from tasks_app.domain.queues import Pause, Queue
from tasks_app.domain.statistics import Unkept
from tasks_app.domain.tasks.states import Pool, State, pool_of

MOST_AHEAD = 10_000  # tasks in front of it that are counted
ANOTHER_LEADS_AFTER = timedelta(seconds=10)  # by then another process has taken the lead
HEARTBEAT_TAKES = timedelta(seconds=1)  # how late it may be before its child counts as silent


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
    scan_at: datetime | None  # when the scan reads it next; None: it is over
    at_most_once: bool | None
    order_key: str | None
    limit_key: str | None
    locks: dict[str, Any] | None
    more_limit_keys: list[str] | None
    weight: int | None
    outages: int | None  # uncharged attempts that met something that was down
    outage_since: datetime | None
    own_date: datetime | None  # when it is due if it is not held
    held: bool
    waits_for: int | None  # how many needs, steps of its flow and events, are open

    @property
    def put_off(self) -> bool:
        """Its ``due_at`` is no date: it is held, or has open needs."""
        return self.held or bool(self.waits_for)

    @property
    def is_over(self) -> bool:
        return pool_of(self.state) is not Pool.PENDING


@dataclass(frozen=True, slots=True)
class Service:
    """The living children, from their heartbeats."""

    children: int = 0  # how many serve the queue
    knowing: int = 0  # how many of them have a handler of this name
    busy: int = 0  # how many of them ran something at their last heartbeat
    names: tuple[str, ...] = ()  # handlers of the children that serve the queue
    elsewhere: tuple[str, ...] = ()  # queues of the children that have a handler of this name
    last_seen: datetime | None = None  # the last heartbeat of a child of the queue, alive or not
    heartbeat_at: datetime | None = None  # the last heartbeat of any child
    scanning: int = 0  # children of tasks-app work, of any queue: each polls when it has room


class RunBy(StrEnum):
    """Whose children are alive, or were last; advice names only these."""

    CELERY = "celery"
    WORK = "work"
    EITHER = "either"  # both, or no heartbeat yet

    @property
    def scanner(self) -> str:
        """What to start so that due tasks are found."""
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
class StandingHold:
    since: datetime
    by: str
    why: str | None


@dataclass(frozen=True, slots=True)
class LockDenial:
    resource: str  # the lock that its last run did not get
    by: str | None  # who held it, or waited for it
    times: int
    since: datetime
    at: datetime
    held: bool  # now


@dataclass(frozen=True, slots=True)
class Scan:
    holder: str
    done_at: datetime | None
    refused_since: datetime | None = None  # since when the broker takes no messages
    refused_because: str = ""
    held_until: datetime | None = None  # how long the lead is held; None: it was given back
    messages: int = 0  # how many messages of the task's queue it saw in the broker


@dataclass(frozen=True, slots=True)
class ConnectionLimit:
    of: str  # the database, or a role that may run tasks, such as ``role app``
    most: int
    used: int

    def is_tight(self, needed: int) -> bool:
        return self.used >= self.most or needed > self.most


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    node: str
    fraction: float | None = None
    note: str | None = None
    killed_at: datetime | None = None  # when its hard limit ends its process


@dataclass(frozen=True, slots=True)
class OrderHolder:
    """Ids of the task that holds the order key, by its state."""

    running: int | None
    first: int | None  # it has a lower id, and is due or waits for a retry
    failed: int | None  # it has a lower id, failed for good, and blocks


@dataclass(frozen=True, slots=True)
class ReachedLimit:
    limit: Limit
    key: str  # the queue, name or limit key that it counts
    running: int


@dataclass(frozen=True, slots=True)
class Line:
    """The due tasks of its queue that go before it, and how fast they went lately."""

    ahead: int  # at most ``MOST_AHEAD`` + 1
    ended: tuple[int, ...]  # how many runs ended, in each whole minute since the first came due
    waited: float | None  # how long those waited that succeeded lately, as a share of that time
    is_shared: bool  # by fair keys


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task and its surroundings; ``row`` None: there is no such task."""

    task_id: int
    now: datetime  # the database's clock
    row: StoredRow | None
    unkept: Unkept | None = None  # successes that left no row; read if the task has none
    last: LastAttempt | None = None
    stop: Pause | None = None
    denial: LockDenial | None = None
    hold: StandingHold | None = None  # None: it is not held, or the audit has no line
    queue: Queue | None = None  # its queue's settings, if it has any
    breaker: StoredBreaker | None = None  # of its handler's dependency, unless it is closed
    service: Service = field(default_factory=Service)
    run_by: RunBy = RunBy.EITHER
    scan: Scan | None = None
    progress: ReportedProgress | None = None
    heartbeat_at: datetime | None = None  # the last heartbeat of the child that runs it
    turn: OrderHolder | None = None  # none: it has no order key, or is not due
    shut: tuple[ReachedLimit, ...] = ()
    locked: tuple[tuple[str, str], ...] = ()  # resources that it has to wait for, and for whom
    member_of: GroupProgress | None = None
    callback_of: GroupProgress | None = None  # the group whose callback it is
    step_of: StepOfFlow | None = None
    events: tuple[AwaitedEvent, ...] = ()  # those that it waits for, or has waited for
    connections: tuple[ConnectionLimit, ...] = ()  # read for a task that is due
    line: Line | None = None  # read for a task that is due and not parked
    late_after: timedelta = timedelta(minutes=1)  # for a due task, and for a scan
    heartbeat_every: timedelta = timedelta(seconds=10)  # the interval of a child's heartbeats

    @property
    def running(self) -> StoredRow | None:
        return self.row if self.row is not None and self.row.state is State.RUNNING else None

    @property
    def waiting(self) -> StoredRow | None:
        return self.row if self.row is not None and self.row.state is State.PENDING else None

    @property
    def due(self) -> StoredRow | None:
        """The row, if it is PENDING and due, and the next scan does not end it."""
        row = self.waiting
        if row is None or row.due_at > self.now or not row.enabled:
            return None
        return None if row.expires_at is not None and row.expires_at <= self.now else row

    @property
    def ready(self) -> StoredRow | None:
        """The row, if it is due and a living child may run it now."""
        stands_still = self.stop or self.breaker or (self.queue and not self.queue.runs)
        return self.due if self.service.knowing and not stands_still else None

    @property
    def silent(self) -> timedelta | None:
        """For how long its child's heartbeat has been missing; None: it is not."""
        span = self.now - self.heartbeat_at if self.heartbeat_at else timedelta(0)
        return span if span > self.heartbeat_every + HEARTBEAT_TAKES else None

    @property
    def refused_since(self) -> datetime | None:
        """Since when nothing is published, as the scan notes; None: it is, or no process scans."""
        published = self.run_by is not RunBy.WORK and not self.scan_is_late
        return self.scan.refused_since if published and self.scan is not None else None

    @property
    def scan_is_late(self) -> bool:
        """No scan for long, or no process is left that could scan."""
        if self.service.scanning and self._any_heartbeat:
            return False
        done_at = self.scan.done_at if self.scan else None
        return done_at is None or self.now - done_at > self.late_after or self.no_leader

    @property
    def last_scan(self) -> str:
        scan = self.scan
        if scan is None or scan.done_at is None:
            return "No process has scanned for due tasks yet"
        return (
            f"No process scans for due tasks; {scan.holder} did last, "
            f"{instant_in_words(scan.done_at, self.now)}"
        )

    @property
    def no_leader(self) -> bool:
        """The lead is free, and no child that could take it has sent a heartbeat."""
        scan = self.scan
        if scan is None or scan.done_at is None:
            return False
        free_since = max(scan.done_at, scan.held_until or scan.done_at)
        return self.now - free_since > ANOTHER_LEADS_AFTER and not self._any_heartbeat

    @property
    def _any_heartbeat(self) -> bool:
        at = self.service.heartbeat_at
        return at is not None and self.now - at <= self.heartbeat_every + HEARTBEAT_TAKES
