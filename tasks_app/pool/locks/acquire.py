"""Acquire: take a group of locks whole, or stand in line for it, or be denied.

Who comes first goes first: whoever waits is in the way of all who come later and do not get along
with him, so that readers who come and go keep no writer out. Nobody who holds waits: no cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.coordination.locks import Ask, Granted, LockMode, Obstacle
from tasks_app.pool.locks import DEAD
from tasks_app.pool.tables import LOCK, LOCK_FENCE, LOCK_HOLDER, LOCK_PART, LOCK_WAIT, NOW

WAIT_LEASE = timedelta(seconds=5)
"""How long a waiter keeps its place without renewing it."""

LONGEST_BLOCKER = 300
NOBODY = 0
"""No task has this id."""

_WANTED = """
    unnest(CAST(:resources AS text[]), CAST(:modes AS text[]), CAST(:most AS integer[]))
        AS w(resource, mode, most)
"""
_OPEN_UP = text(f"""
    INSERT INTO {LOCK} (resource)
    SELECT w.resource FROM unnest(CAST(:resources AS text[])) AS w(resource)
    ORDER BY w.resource COLLATE "C" ON CONFLICT DO NOTHING
""")
_DECIDE = text(f"""
    SELECT r.resource FROM {LOCK} r WHERE r.resource = ANY(CAST(:resources AS text[]))
    ORDER BY r.resource FOR NO KEY UPDATE
""")
_HINDERS = f"(p.mode <> w.mode OR w.mode = '{LockMode.EXCLUSIVE}')"
_IN_THE_WAY = text(f"""
    SELECT w.resource, o.mode, o.who, o.task_id, o.since, o.held, o.dead
    FROM {_WANTED} JOIN {LOCK} r ON r.resource = w.resource
    CROSS JOIN LATERAL (
        SELECT p.mode, h.who, h.task_id, coalesce(h.granted_at, h.asked_at) AS since,
            h.fence IS NOT NULL AS held, bool_or({DEAD}) OVER () AS dead,
            count(*) OVER () AS beside, count(*) FILTER (WHERE {_HINDERS}) OVER () AS against
        FROM {LOCK_PART} p JOIN {LOCK_HOLDER} h ON h.id = p.holder_id
        WHERE p.resource = w.resource AND h.token <> :token
          AND (h.task_id, h.lease_token) IS DISTINCT FROM
              (CAST(:other_task AS bigint), CAST(:lease_token AS uuid))
          AND (h.fence IS NOT NULL OR (NOT {DEAD} AND h.id < coalesce(
              (SELECT m.id FROM {LOCK_HOLDER} m WHERE m.token = :token), 9223372036854775807)))
        ORDER BY {_HINDERS} DESC, h.fence IS NULL, h.id LIMIT 1) AS o
    WHERE o.against > 0
       OR (w.mode = '{LockMode.COUNTED}' AND o.beside >= coalesce(r.most, w.most))
    ORDER BY w.resource COLLATE "C"
""")
_BURY = text(f"""
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
    DELETE FROM {LOCK_HOLDER} h USING dead d WHERE h.id = d.id
""")
_ENTER = f"""
    h AS (
        INSERT INTO {LOCK_HOLDER} AS h (token, who, task_id, attempt, lease_token,
            asked_at, granted_at, fence, lease_until)
        VALUES (:token, :who, :task_id, :attempt, :lease_token, {NOW}, %s, %s,
            {NOW} + CAST(:lease AS interval))
        ON CONFLICT (token) DO UPDATE SET granted_at = coalesce(h.granted_at, EXCLUDED.granted_at),
            fence = coalesce(h.fence, EXCLUDED.fence), lease_until = EXCLUDED.lease_until
        RETURNING h.id, h.token, h.who, h.task_id, h.asked_at, h.granted_at, h.fence),
    parts AS (
        INSERT INTO {LOCK_PART} (resource, holder_id, mode, most, blocked_by)
        SELECT w.resource, h.id, w.mode, w.most, b.who
        FROM h CROSS JOIN {_WANTED}
        LEFT JOIN unnest(CAST(:blocked AS text[]), CAST(:blockers AS text[])) AS b(resource, who)
            USING (resource)
        ON CONFLICT DO NOTHING)
"""
_GRANT = text(f"""
    WITH {_ENTER % (NOW, f"nextval('{LOCK_FENCE}')")},
    used AS (
        UPDATE {LOCK} r SET grants = r.grants + 1, used_at = {NOW}
        WHERE r.resource = ANY(CAST(:resources AS text[]))),
    waited AS (
        INSERT INTO {LOCK_WAIT}
            (resource, mode, outcome, who, task_id, blocked_by, asked_at, ended_at)
        SELECT p.resource, p.mode, 'granted', h.who, h.task_id, p.blocked_by, h.asked_at,
            h.granted_at
        FROM h JOIN {LOCK_PART} p ON p.holder_id = h.id WHERE p.blocked_by IS NOT NULL)
    SELECT h.fence, h.granted_at FROM h
""")
_STAND_IN_LINE = text(f"""
    WITH {_ENTER % ("NULL", "NULL")}
    UPDATE {LOCK} r SET used_at = {NOW} WHERE r.resource = ANY(CAST(:blocked AS text[]))
""")
_DENY = text(f"""
    WITH counted AS (
        UPDATE {LOCK} r SET denials = r.denials + 1, used_at = {NOW}
        WHERE r.resource = ANY(CAST(:blocked AS text[])))
    INSERT INTO {LOCK_WAIT} AS d (resource, mode, outcome, who, task_id, blocked_by,
        asked_at, ended_at)
    SELECT w.resource, w.mode, 'denied', CAST(:who AS text), CAST(:task_id AS bigint), b.who,
        {NOW}, {NOW}
    FROM {_WANTED}
    JOIN unnest(CAST(:blocked AS text[]), CAST(:blockers AS text[])) AS b(resource, who)
        USING (resource)
    WHERE CAST(:task_id AS bigint) IS NOT NULL
    ON CONFLICT (task_id, resource) WHERE outcome = 'denied' DO UPDATE
        SET times = d.times + 1, ended_at = EXCLUDED.ended_at, blocked_by = EXCLUDED.blocked_by,
            mode = EXCLUDED.mode
""")


def open_up(connection: Connection, ask: Ask) -> None:
    """Make the rows of resources that nobody has ever asked for.

    In a transaction of its own: a caller that locked some of the rows and made others would lock
    them out of order.
    """
    connection.execute(_OPEN_UP, {"resources": ask.resources})


def acquire(
    connection: Connection, ask: Ask, *, waits: bool = False, now: datetime | None = None
) -> Granted | tuple[Obstacle, ...] | None:
    """Take the group, or tell what is in the way; None: a resource has to be opened up first.

    With ``waits`` the group stands in line from then on; ask again under the same token, and renew
    the place by ``WAIT_LEASE``. Without, it was denied. The transaction must be READ COMMITTED,
    and committed at once.
    """
    values = _values(ask, now)
    if len(connection.execute(_DECIDE, values).all()) < len(ask.parts):
        return None
    found = connection.execute(_IN_THE_WAY, values).all()
    if any(row.dead for row in found):
        connection.execute(_BURY, values)
        found = connection.execute(_IN_THE_WAY, values).all()
    if not found:
        return Granted(*connection.execute(_GRANT, values).one())
    obstacles = _obstacles(found)
    values |= {
        "blocked": [obstacle.resource for obstacle in obstacles],
        "blockers": [str(obstacle)[:LONGEST_BLOCKER] for obstacle in obstacles],
    }
    if waits:
        connection.execute(_STAND_IN_LINE, {**values, "lease": WAIT_LEASE})
    else:
        connection.execute(_DENY, values)
    return obstacles


def is_hindered(connection: Connection, ask: Ask, *, now: datetime | None = None) -> bool:
    """Tell, without a lock, whether to ask again is in vain just now."""
    found = connection.execute(_IN_THE_WAY, _values(ask, now)).all()
    return any(not row.dead for row in found)


def _values(ask: Ask, now: datetime | None) -> dict[str, Any]:
    run = ask.run
    return {
        "token": ask.token,
        "who": ask.who,
        "task_id": run and run.task_id,
        "other_task": run.task_id if run else NOBODY,
        "attempt": run and run.attempt,
        "lease_token": run and run.token,
        "lease": ask.lease,
        "resources": ask.resources,
        "modes": [str(part.mode) for part in ask.parts],
        "most": [part.most for part in ask.parts],
        "blocked": [],
        "blockers": [],
        "now": now,
    }


def _obstacles(rows: Sequence[Any]) -> tuple[Obstacle, ...]:
    return tuple(
        Obstacle(row.resource, LockMode(row.mode), row.who, row.task_id, row.since, row.held)
        for row in rows
    )
