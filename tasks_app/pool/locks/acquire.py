"""Acquires a group of locks at once, queues for it or is denied; wakes the next waiters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import GateKind
from tasks_app.domain.locks import GrantedLocks, LockMode, LockRequest, Obstacle
from tasks_app.pool.connection.sessions import driver_of, is_pooled
from tasks_app.pool.locks.holders import DEAD, NO_FLUSH
from tasks_app.pool.tables import (
    GATE,
    LOCK,
    LOCK_FENCE,
    LOCK_HOLDER,
    LOCK_PART,
    LOCK_WAIT,
    NOW,
    Clock,
)

WAIT_LEASE = timedelta(seconds=5)  # a waiter keeps its place for so long without renewal
LONGEST_BLOCKER = 300
# The LIMIT leaves none out. It makes a generic plan look as cheap as one for these values, so that
# PostgreSQL keeps it: planning takes twice as long as the rest.
_WANTED = """
    wanted AS (
        SELECT w.* FROM unnest(CAST(:resources AS text[]), CAST(:modes AS text[]),
            CAST(:most AS integer[])) AS w(resource, mode, most)
        LIMIT cardinality(CAST(:resources AS text[])))
"""
_INSERT_RESOURCES = text(f"""
    INSERT INTO {LOCK} (resource)
    SELECT w.resource FROM unnest(CAST(:resources AS text[])) AS w(resource)
    ORDER BY w.resource COLLATE "C" ON CONFLICT DO NOTHING""")
_DECIDE = f"""
    SELECT r.resource, r.xmin AS version
    FROM hurried CROSS JOIN wanted w JOIN {LOCK} r ON r.resource = w.resource
    ORDER BY r.resource FOR NO KEY UPDATE OF r
"""
_HURRIED = "hurried AS (SELECT set_config('lock_timeout', '1000', true))"
_DECIDE_FIRST = text(f"WITH {_HURRIED}, {_WANTED} {_DECIDE}")
_HINDERS = f"(p.mode <> w.mode OR w.mode = '{LockMode.EXCLUSIVE}')"
_IN_THE_WAY = f"""
    SELECT w.resource, o.mode, o.who, o.task_id, o.since, o.held, o.dead
    FROM wanted w JOIN {LOCK} r ON r.resource = w.resource
    CROSS JOIN LATERAL (
        SELECT p.mode, h.who, h.task_id, coalesce(h.granted_at, h.asked_at) AS since,
            h.fence IS NOT NULL AS held, bool_or(d.dead) OVER () AS dead,
            count(*) OVER () AS beside, count(*) FILTER (WHERE {_HINDERS}) OVER () AS against
        FROM {LOCK_PART} p JOIN {LOCK_HOLDER} h ON h.id = p.holder_id
        CROSS JOIN LATERAL (SELECT {DEAD} AS dead) AS d
        WHERE p.resource = w.resource AND h.token <> :token
          AND (h.task_id, h.lease_token) IS DISTINCT FROM
              (CAST(:other_task AS bigint), CAST(:lease_token AS uuid))
          AND (h.fence IS NOT NULL OR (NOT d.dead AND h.id < coalesce(
              (SELECT m.id FROM {LOCK_HOLDER} m WHERE m.token = :token), 9223372036854775807)))
        ORDER BY {_HINDERS} DESC, h.fence IS NULL, h.id LIMIT 1) AS o
    WHERE o.against > 0
       OR (w.mode = '{LockMode.COUNTED}' AND o.beside >= coalesce(r.most, w.most))
"""
_IS_HINDERED = text(f"""
    WITH {_WANTED} SELECT EXISTS (SELECT FROM ({_IN_THE_WAY}) AS o WHERE NOT o.dead)""")
REMOVE_DEAD = text(f"""
    WITH dead AS MATERIALIZED (
        SELECT h.id, h.who, h.task_id, h.asked_at, h.fence FROM {LOCK_HOLDER} h
        WHERE h.id IN (SELECT p.holder_id FROM {LOCK_PART} p
                       WHERE p.resource = ANY(CAST(:resources AS text[])))
          AND h.token <> :token AND {DEAD}
        FOR UPDATE OF h SKIP LOCKED),
    noted AS (
        INSERT INTO {LOCK_WAIT}
            (resource, mode, outcome, who, task_id, blocked_by, asked_at, ended_at)
        SELECT p.resource, p.mode,
            CASE WHEN d.fence IS NULL THEN 'vanished' ELSE 'taken_over' END,
            d.who, d.task_id,
            CASE WHEN d.fence IS NULL THEN p.blocked_by ELSE CAST(:who AS text) END,
            d.asked_at, {NOW}
        FROM dead d JOIN {LOCK_PART} p ON p.holder_id = d.id
        WHERE d.fence IS NOT NULL OR p.blocked_by IS NOT NULL)
    DELETE FROM {LOCK_HOLDER} h USING dead d WHERE h.id = d.id""")
_BLOCKED_BY = f"""left(o.resource
    || CASE WHEN o.held THEN ' is held by ' ELSE ' is waited for by ' END || o.who
    || coalesce(' (task ' || o.task_id || ')', '') || ', ' || o.mode, {LONGEST_BLOCKER})"""
_WAIT = "resource, mode, outcome, who, task_id, blocked_by, asked_at, ended_at"
_WAITED = f"""
    waited AS (
        INSERT INTO {LOCK_WAIT} ({_WAIT})
        SELECT p.resource, p.mode, 'granted', h.who, h.task_id, p.blocked_by, h.asked_at,
            h.granted_at
        FROM h JOIN {LOCK_PART} p ON p.holder_id = h.id
        WHERE h.fence IS NOT NULL AND p.blocked_by IS NOT NULL)
"""
_DENIED = f"""
    counted AS (
        UPDATE {LOCK} r SET denials = r.denials + 1, used_at = v.now
        FROM verdict v CROSS JOIN hindrance o WHERE r.resource = o.resource),
    denied AS (
        INSERT INTO {LOCK_WAIT} AS d ({_WAIT})
        SELECT w.resource, w.mode, 'denied', CAST(:who AS text), CAST(:task_id AS bigint),
            o.blocked_by, v.now, v.now
        FROM verdict v CROSS JOIN hindrance o JOIN wanted w ON w.resource = o.resource
        WHERE CAST(:task_id AS bigint) IS NOT NULL
        ON CONFLICT (task_id, resource) WHERE outcome = 'denied' DO UPDATE
            SET times = d.times + 1, ended_at = EXCLUDED.ended_at,
                blocked_by = EXCLUDED.blocked_by, mode = EXCLUDED.mode)
"""


def _request(enters: str, noted: str) -> str:
    # A statement's snapshot is older than the row locks that it waits for. A request that enters
    # writes all its control rows, so one that came in between shows: a locked row is not the one
    # seen.
    return f"""
    WITH {_HURRIED}, {_WANTED},
    seen AS (
        SELECT r.resource, r.xmin AS version
        FROM wanted w JOIN {LOCK} r ON r.resource = w.resource),
    decided AS ({_DECIDE}),
    fresh AS (
        SELECT true AS fresh FROM decided d JOIN seen s USING (resource, version)
        HAVING count(*) = (SELECT count(*) FROM wanted)),
    hindrance AS (
        SELECT o.*, {_BLOCKED_BY} AS blocked_by FROM fresh CROSS JOIN ({_IN_THE_WAY}) AS o),
    verdict AS (
        SELECT v.granted, {NOW} AS now, CASE WHEN NOT v.granted THEN {NO_FLUSH} END
        FROM fresh CROSS JOIN (
            SELECT count(*) = 0 AS granted, bool_or(o.dead) AS dead FROM hindrance o) AS v
        WHERE v.dead IS NOT TRUE OR CAST(:buried AS boolean)),
    h AS (
        INSERT INTO {LOCK_HOLDER} AS h (token, who, task_id, attempt, lease_token,
            asked_at, granted_at, fence, lease_until)
        SELECT :token, :who, :task_id, :attempt, :lease_token, v.now,
            CASE WHEN v.granted THEN v.now END,
            CASE WHEN v.granted THEN nextval('{LOCK_FENCE}') END,
            v.now + CASE WHEN v.granted THEN CAST(:lease AS interval)
                ELSE CAST(:place_lease AS interval) END
        FROM verdict v WHERE {enters}
        ON CONFLICT (token) DO UPDATE SET granted_at = coalesce(h.granted_at, EXCLUDED.granted_at),
            fence = coalesce(h.fence, EXCLUDED.fence), lease_until = EXCLUDED.lease_until
        RETURNING h.id, h.who, h.task_id, h.asked_at, h.granted_at, h.fence),
    parts AS (
        INSERT INTO {LOCK_PART} (resource, holder_id, mode, most, blocked_by)
        SELECT w.resource, h.id, w.mode, w.most, o.blocked_by
        FROM h CROSS JOIN wanted w LEFT JOIN hindrance o ON o.resource = w.resource
        ON CONFLICT DO NOTHING),
    used AS (
        UPDATE {LOCK} r SET grants = r.grants + CAST(v.granted AS integer), used_at = v.now
        FROM verdict v CROSS JOIN wanted w WHERE r.resource = w.resource AND {enters}),
    {noted}
    SELECT f.fresh, h.fence, h.granted_at, o.* FROM (SELECT) AS one
    LEFT JOIN fresh f ON true LEFT JOIN h ON true LEFT JOIN hindrance o ON true
    ORDER BY o.resource COLLATE "C"
    """


# psycopg caches the parsed form of statements up to 4,096 characters.
_REQUEST = text(" ".join(_request("v.granted", _DENIED).split()))
_REQUEST_OR_QUEUE = text(" ".join(_request("true", _WAITED).split()))


def insert_resources(connection: Connection, ask: LockRequest) -> None:
    """Insert the rows of resources that were never requested before."""
    # In its own transaction: a caller that locked some rows and inserted others would lock them
    # out of order.
    connection.execute(_INSERT_RESOURCES, {"resources": ask.resources})


def acquire(
    connection: Connection, ask: LockRequest, *, waits: bool = False, now: Clock = None
) -> GrantedLocks | tuple[Obstacle, ...] | None:
    """Take the group, or return the obstacles; None: call :func:`insert_resources` first."""
    # With ``waits`` the group is in the queue from then on; repeat the call with the same token,
    # and renew the place by ``WAIT_LEASE``. Without, it is denied. The transaction must be READ
    # COMMITTED, and committed at once.
    values = _values(ask, now)
    if len(connection.execute(_DECIDE_FIRST, values).all()) < len(ask.parts):
        return None
    statement = _REQUEST_OR_QUEUE if waits else _REQUEST
    found = connection.execute(statement, values).all()
    if any(row.dead for row in found):
        connection.execute(REMOVE_DEAD, values)
        found = connection.execute(statement, {**values, "buried": True}).all()
    return _answer(found)


def acquire_at_once(
    connection: Connection, ask: LockRequest, *, waits: bool = False, now: Clock = None
) -> GrantedLocks | tuple[Obstacle, ...] | None:
    """Do the same by one statement, which may be a transaction; None: use :func:`acquire`."""
    # That is needed after a concurrent decision, or if a dead holder has to be removed.
    statement = _REQUEST_OR_QUEUE if waits else _REQUEST
    found = connection.execute(statement, _values(ask, now)).all()
    return None if found[0].fresh is None or any(row.dead for row in found) else _answer(found)


def would_be_denied(connection: Connection, ask: LockRequest, *, now: Clock = None) -> bool:
    """Whether a request would fail now; takes no lock."""
    return bool(connection.execute(_IS_HINDERED, _values(ask, now)).scalar())


def _values(ask: LockRequest, now: Clock) -> dict[str, Any]:
    run = ask.run
    return {
        "token": ask.token,
        "who": ask.who,
        "task_id": run and run.task_id,
        "other_task": run.task_id if run else 0,  # no task has this id
        "attempt": run and run.attempt,
        "lease_token": run and run.token,
        "lease": ask.lease,
        "place_lease": WAIT_LEASE,
        "resources": ask.resources,
        "modes": [str(part.mode) for part in ask.parts],
        "most": [part.most for part in ask.parts],
        "buried": False,
        "now": now,
    }


def _answer(rows: Sequence[Any]) -> GrantedLocks | tuple[Obstacle, ...]:
    if rows[0].resource is None:
        return GrantedLocks(rows[0].fence, rows[0].granted_at)
    return tuple(
        Obstacle(row.resource, LockMode(row.mode), row.who, row.task_id, row.since, row.held)
        for row in rows
    )


CHANNEL = "tasks_app_locks"
_WAKE = text(f"""
    SELECT h.token, pg_notify('{CHANNEL}', CAST(h.token AS text))
    FROM {LOCK_HOLDER} h WHERE h.fence IS NULL AND h.lease_until > {NOW} AND h.id IN (
        SELECT p.holder_id FROM {LOCK_PART} p
        WHERE p.resource = ANY(CAST(:resources AS text[])) AND NOT EXISTS (
            SELECT FROM {LOCK_PART} q JOIN {LOCK_HOLDER} h ON h.id = q.holder_id
            WHERE q.resource = p.resource AND q.holder_id <> p.holder_id AND NOT {DEAD}
              AND (h.fence IS NOT NULL OR q.holder_id < p.holder_id)
              AND (q.mode <> p.mode OR q.mode = '{LockMode.EXCLUSIVE}'
                OR (q.mode = '{LockMode.COUNTED}' AND h.fence IS NULL))))""")


def notify_next(
    connection: Connection, resources: Sequence[str], *, now: Clock = None
) -> list[Any]:
    """Notify the first waiter for each of the resources, and all that are compatible with it."""
    # Of counted waiters only the first is notified: one release makes room for one.
    return list(connection.execute(_WAKE, {"resources": list(resources), "now": now}).scalars())


_LOOK_SOON = text(f"""
    UPDATE {GATE} t SET look_at = {NOW} WHERE t.gate = ANY(ARRAY(
        SELECT g.gate FROM {GATE} g
        WHERE g.look_at IS NOT NULL AND g.gate = ANY(ARRAY(
            SELECT '{GateKind.LOCK} ' || w.resource
            FROM unnest(CAST(:resources AS text[])) AS w(resource)))
        ORDER BY g.gate COLLATE "C" FOR NO KEY UPDATE))""")


def look_soon(connection: Connection, resources: Sequence[str], *, now: Clock = None) -> None:
    """Let the leader look which parked tasks may have the resources; most often none waits."""
    connection.execute(_LOOK_SOON, {"resources": list(resources), "now": now})


def listen_for_wake_ups(connection: Connection) -> bool:
    """Listen on an AUTOCOMMIT connection of psycopg; False: this connection cannot listen."""
    if connection.dialect.driver != "psycopg" or is_pooled(connection):
        return False
    connection.execute(text(f"LISTEN {CHANNEL}"))
    return True


def read_wake_ups(connection: Connection, for_s: float) -> Iterator[str]:
    """Yield for so long the tokens of waiters that should repeat their request."""
    for notification in driver_of(connection).notifies(timeout=for_s):
        yield notification.payload
