"""Holders and waiters of locks: renewed, released, reported, limited by operators, pruned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import (
    LOCK,
    LOCK_HOLDER,
    LOCK_PART,
    LOCK_REPORT,
    LOCK_WAIT,
    LOCKS,
    NOW,
    PENDING,
    Clock,
)

_RENEW = text(f"""
    WITH ours AS MATERIALIZED (
        SELECT h.id FROM {LOCK_HOLDER} h WHERE h.token = ANY(CAST(:tokens AS uuid[]))
        ORDER BY h.id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {LOCK_HOLDER} h SET lease_until = {NOW} + CAST(:lease AS interval)
    FROM ours o WHERE h.id = o.id""")
_THERE = text(f"SELECT token FROM {LOCK_HOLDER} WHERE token = ANY(CAST(:tokens AS uuid[]))")
_GUARD = text(f"""
    SELECT h.fence FROM {LOCK_HOLDER} h WHERE h.token = :token AND h.fence IS NOT NULL
    FOR KEY SHARE""")


def renew(
    connection: Connection, tokens: Sequence[UUID], lease: timedelta, *, now: Clock = None
) -> set[UUID]:
    """Extend the leases to ``lease`` from now; return the tokens that are lost."""
    # A locked row is skipped: its lock is being released, or taken over.
    values = {"tokens": list(tokens), "lease": lease, "now": now}
    connection.execute(_RENEW, values)
    return set(tokens) - set(connection.execute(_THERE, values).scalars())


def guard(connection: Connection, token: UUID) -> bool:
    """Keep the lock until the caller's transaction ends, even if its lease expires; False: lost."""
    # Renewals do not wait for this; an attempt to take the lock over finds it held.
    return connection.execute(_GUARD, {"token": token}).first() is not None


_RELEASE = text(f"""
    DELETE FROM {LOCK_HOLDER} h WHERE h.token = ANY(CAST(:tokens AS uuid[])) RETURNING h.token""")
NO_FLUSH = "set_config('synchronous_commit', 'off', true)"
"""For our own transactions that grant nothing: the COMMIT does not wait for the disk. After a crash
of the server, waiters repeat their requests, and a released lock ends with its lease. The flush of
the next grant includes them."""
UNHURRIED = f"""unhurried AS MATERIALIZED (
    SELECT {NO_FLUSH}, set_config('lock_timeout', '1000', true))"""
_RELEASE_NOW = text(f"""
    WITH {UNHURRIED}
    DELETE FROM {LOCK_HOLDER} h USING unhurried
    WHERE h.token = ANY(CAST(:tokens AS uuid[])) RETURNING h.token""")
_LEAVE_QUEUE = text(f"""
    WITH {UNHURRIED},
    gone AS (
        DELETE FROM {LOCK_HOLDER} h USING unhurried WHERE h.token = :token AND h.fence IS NULL
        RETURNING h.id, h.who, h.task_id, h.asked_at)
    INSERT INTO {LOCK_WAIT} (resource, mode, outcome, who, task_id, blocked_by, asked_at, ended_at)
    SELECT p.resource, p.mode, 'timed_out', g.who, g.task_id, p.blocked_by, g.asked_at, {NOW}
    FROM gone g JOIN {LOCK_PART} p ON p.holder_id = g.id WHERE p.blocked_by IS NOT NULL""")


def release(connection: Connection, *tokens: UUID) -> set[UUID]:
    """Release groups; return those that existed: others were taken over, or released before."""
    # This locks no resource: a concurrent request finds it held, and repeats.
    return set(connection.execute(_RELEASE, {"tokens": list(tokens)}).scalars())


def release_now(connection: Connection, *tokens: UUID) -> set[UUID]:
    """Do the same in a transaction that does nothing else."""
    return set(connection.execute(_RELEASE_NOW, {"tokens": list(tokens)}).scalars())


def leave_queue(connection: Connection, token: UUID, *, now: Clock = None) -> None:
    connection.execute(_LEAVE_QUEUE, {"token": token, "now": now})


# The holder's run has ended, finally: a run that has lost its fence never gets it back. Who waits
# is a run, too, or a task that is parked.
OVER = f"""(h.task_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM {PENDING} t WHERE t.id = h.task_id AND t.attempt = h.attempt
      AND (t.lease_token = h.lease_token AND t.state = '{State.RUNNING}'
        OR h.fence IS NULL AND t.parked_kind = 'lock')))"""
DEAD = f"(h.lease_until <= {NOW} OR {OVER})"
_FIND = text(f"""
    SELECT l.resource, l.mode, l.state, l.who, l.task_id, l.fence,
        {NOW} - coalesce(l.granted_at, l.asked_at) AS age, {NOW} - l.lease_until AS beyond,
        (SELECT {OVER} FROM {LOCK_HOLDER} h WHERE h.token = l.token) AS over, l.blocked_by, l.token
    FROM {LOCKS} l
    WHERE CAST(:resource AS text) IS NULL OR l.resource = :resource
    ORDER BY l.resource, l.granted_at NULLS LAST, l.asked_at LIMIT :most""")
_DECLARED = text(f"""
    SELECT l.resource FROM {LOCK_HOLDER} h JOIN {LOCK_PART} l ON l.holder_id = h.id
    WHERE h.task_id = :task_id AND h.lease_token = :lease_token
      AND h.token <> ALL (CAST(:others AS uuid[]))
    ORDER BY l.resource""")
_CONTENTION = text(f"""
    SELECT r.resource, r.grants, r.waits, r.timed_out, r.denials, r.taken_over, r.vanished,
        r.waited, r.waited_95, r.waited_most, r.held_now, r.waiting_now, r.most
    FROM {LOCK_REPORT} r
    WHERE CAST(:resource AS text) IS NULL OR r.resource = :resource
    ORDER BY r.waited DESC, r.denials DESC, r.grants DESC, r.resource LIMIT :most""")
_WAITS = text(f"""
    SELECT w.resource, w.mode, w.outcome, w.who, w.task_id, w.ended_at - w.asked_at AS waited,
        w.times, w.blocked_by, w.ended_at
    FROM {LOCK_WAIT} w
    WHERE CAST(:resource AS text) IS NULL OR w.resource = :resource
    ORDER BY waited DESC, w.ended_at DESC LIMIT :most""")


@dataclass(frozen=True, slots=True)
class Held:
    resource: str
    mode: str
    state: str  # ``held`` or ``waiting``
    who: str
    task_id: int | None
    fence: int | None
    age: timedelta  # since it was granted, or asked for
    beyond: timedelta  # since its lease expired; negative: it has not
    over: bool  # its task has ended: the next request gets the lock
    blocked_by: str | None
    token: UUID


@dataclass(frozen=True, slots=True)
class Contention:
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
    resource: str
    mode: str
    outcome: str
    who: str
    task_id: int | None
    waited: timedelta
    times: int
    blocked_by: str | None
    ended_at: datetime


def declared_of(connection: Connection, run: Fence, others: Sequence[UUID]) -> list[str]:
    """Return the resources that a run holds, but those of groups with these tokens."""
    values = {"task_id": run.task_id, "lease_token": run.token, "others": list(others)}
    return list(connection.execute(_DECLARED, values).scalars())


def find_holders(
    connection: Connection, resource: str | None = None, *, most: int = 100, now: Clock = None
) -> list[Held]:
    values = {"resource": resource, "most": most, "now": now}
    return [Held(*row) for row in connection.execute(_FIND, values)]


def contention(
    connection: Connection, resource: str | None = None, *, most: int = 20
) -> list[Contention]:
    """Return the resources, the longest waits first."""
    values = {"resource": resource, "most": most}
    return [Contention(*row) for row in connection.execute(_CONTENTION, values)]


def longest_waits(
    connection: Connection, resource: str | None = None, *, most: int = 20
) -> list[Wait]:
    return [Wait(*row) for row in connection.execute(_WAITS, {"resource": resource, "most": most})]


_FREE = text(f"""
    DELETE FROM {LOCK_HOLDER} h
    WHERE h.id IN (SELECT p.holder_id FROM {LOCK_PART} p WHERE p.resource = :resource)
      AND (CAST(:token AS uuid) IS NULL OR h.token = :token) AND h.fence IS NOT NULL
    RETURNING h.who""")
_LIMIT = text(f"""
    INSERT INTO {LOCK} AS r (resource, most) VALUES (:resource, CAST(:most AS integer))
    ON CONFLICT (resource) DO UPDATE SET most = EXCLUDED.most""")


def free_resource(connection: Connection, resource: str, token: UUID | None = None) -> list[str]:
    """Remove the holders of a resource, or one of them; return their names."""
    # Waits for a guard in an open transaction.
    return list(connection.execute(_FREE, {"resource": resource, "token": token}).scalars())


def limit_resource(connection: Connection, resource: str, most: int | None) -> None:
    """Set how many counted holders it may have, instead of what code says; None: what code says."""
    connection.execute(_LIMIT, {"resource": resource, "most": most})


GONE_FOR = timedelta(minutes=10)
"""No holder comes back so long after its lease. Until then it keeps a lock without waiters."""
FORGET_AFTER = timedelta(days=7)
_HOLDERS = text(f"""
    WITH gone AS MATERIALIZED (
        SELECT h.id FROM {LOCK_HOLDER} h
        WHERE h.lease_until <= {NOW} - CAST(:gone_for AS interval) OR {OVER}
        ORDER BY h.id LIMIT :most FOR UPDATE OF h SKIP LOCKED)
    DELETE FROM {LOCK_HOLDER} h USING gone g WHERE h.id = g.id RETURNING h.id""")
_OLD_WAITS = text(f"""
    WITH old AS MATERIALIZED (
        SELECT w.ctid FROM {LOCK_WAIT} w
        WHERE w.ended_at < {NOW} - CAST(:forget_after AS interval)
        LIMIT :most FOR UPDATE OF w SKIP LOCKED)
    DELETE FROM {LOCK_WAIT} w USING old o WHERE w.ctid = o.ctid RETURNING 1""")
_UNUSED = text(f"""
    SELECT r.resource FROM {LOCK} r
    WHERE r.used_at < {NOW} - CAST(:forget_after AS interval) AND r.most IS NULL
    LIMIT :most FOR UPDATE OF r SKIP LOCKED""")
_RESOURCES = text(f"""
    DELETE FROM {LOCK} r WHERE r.resource = ANY(CAST(:resources AS text[]))
      AND NOT EXISTS (SELECT FROM {LOCK_PART} p WHERE p.resource = r.resource)
    RETURNING r.resource""")


def prune_locks(connection: Connection, most: int, *, now: Clock = None) -> int:
    """Remove up to ``most`` of each kind; return the number of the most frequent kind."""
    # Resources are locked before they are checked: one that was granted meanwhile stays.
    values = {"most": most, "gone_for": GONE_FOR, "forget_after": FORGET_AFTER, "now": now}
    holders = len(connection.execute(_HOLDERS, values).all())
    waits = len(connection.execute(_OLD_WAITS, values).all())
    unused = connection.execute(_UNUSED, values).scalars().all()
    resources = connection.execute(_RESOURCES, {"resources": list(unused)}).all() if unused else []
    return max(holders, waits, len(resources))
