"""Report: holders, waiters, and contended resources. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.pool.locks import OVER
from tasks_app.pool.tables import LOCK_HOLDER, LOCK_REPORT, LOCK_WAIT, LOCKS, NOW

_FIND = text(f"""
    SELECT l.resource, l.mode, l.state, l.who, l.task_id, l.fence,
        {NOW} - coalesce(l.granted_at, l.asked_at) AS age, {NOW} - l.lease_until AS beyond,
        (SELECT {OVER} FROM {LOCK_HOLDER} h WHERE h.token = l.token) AS over, l.blocked_by, l.token
    FROM {LOCKS} l
    WHERE CAST(:resource AS text) IS NULL OR l.resource = :resource
    ORDER BY l.resource, l.granted_at NULLS LAST, l.asked_at LIMIT :most
""")
_CONTENTION = text(f"""
    SELECT r.resource, r.grants, r.waits, r.timed_out, r.denials, r.taken_over, r.vanished,
        r.waited, r.waited_95, r.waited_most, r.held_now, r.waiting_now, r.most
    FROM {LOCK_REPORT} r
    WHERE CAST(:resource AS text) IS NULL OR r.resource = :resource
    ORDER BY r.waited DESC, r.denials DESC, r.grants DESC, r.resource LIMIT :most
""")
_WAITS = text(f"""
    SELECT w.resource, w.mode, w.outcome, w.who, w.task_id, w.ended_at - w.asked_at AS waited,
        w.times, w.blocked_by, w.ended_at
    FROM {LOCK_WAIT} w
    WHERE CAST(:resource AS text) IS NULL OR w.resource = :resource
    ORDER BY waited DESC, w.ended_at DESC LIMIT :most
""")


@dataclass(frozen=True, slots=True)
class Held:
    """One resource in one group that is held, or waited for."""

    resource: str
    mode: str
    state: str
    """``held`` or ``waiting``."""
    who: str
    task_id: int | None
    fence: int | None
    age: timedelta
    """Since it was granted, or asked for."""
    beyond: timedelta
    """How long its lease is over; negative: it is not."""
    over: bool
    """Its task does not run any more: the next to ask has it."""
    blocked_by: str | None
    token: UUID


@dataclass(frozen=True, slots=True)
class Contention:
    """What became of all who wanted one resource."""

    resource: str
    grants: int
    waits: int
    timed_out: int
    denials: int
    taken_over: int
    vanished: int
    waited: timedelta
    waited_95: timedelta | None
    waited_most: timedelta | None
    held_now: int
    waiting_now: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait that is over."""

    resource: str
    mode: str
    outcome: str
    who: str
    task_id: int | None
    waited: timedelta
    times: int
    blocked_by: str | None
    ended_at: datetime


def find(
    connection: Connection,
    resource: str | None = None,
    *,
    most: int = 100,
    now: datetime | None = None,
) -> list[Held]:
    """Return what is held and waited for, those who hold first."""
    values = {"resource": resource, "most": most, "now": now}
    return [Held(*row) for row in connection.execute(_FIND, values)]


def contention(
    connection: Connection, resource: str | None = None, *, most: int = 20
) -> list[Contention]:
    """Return the resources that were waited for longest, and how often."""
    values = {"resource": resource, "most": most}
    return [Contention(*row) for row in connection.execute(_CONTENTION, values)]


def waits(connection: Connection, resource: str | None = None, *, most: int = 20) -> list[Wait]:
    """Return the longest waits that are over."""
    values = {"resource": resource, "most": most}
    return [Wait(*row) for row in connection.execute(_WAITS, values)]
