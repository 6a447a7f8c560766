"""What stands around one task: its last attempt, its message, pauses, limits, the last scan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tasks_app.domain.flow_control.limits import Limit


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
