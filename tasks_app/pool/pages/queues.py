"""Queues: what limits hold, which keys run, and whose locks are whose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import Limit
from tasks_app.domain.flow_control.waiting_reason import WaitingKind
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import PENDING

MOST_HELD = 1_000
"""Tasks that are counted behind one limit."""
MOST_KEYS, MOST_PARKED = 100, 10_000

_PARKED = f"SELECT FROM {PENDING} p WHERE p.state = '{State.PENDING}' AND p.parked_kind = l.kind"
_HELD = text(f"""
    SELECT l.kind, l.target, CASE WHEN l.kind = '{WaitingKind.KEY}' AND right(l.target, 1) = '*'
        THEN (SELECT count(*) FROM ({_PARKED}
            AND starts_with(p.parked_for, rtrim(l.target, '*')) LIMIT {MOST_HELD + 1}) AS p)
        ELSE (SELECT count(*) FROM ({_PARKED}
            AND p.parked_for = l.target LIMIT {MOST_HELD + 1}) AS p) END AS number
    FROM unnest(CAST(:kinds AS text[]), CAST(:targets AS text[])) AS l(kind, target)
""")
_KEYS = text(f"""
    (SELECT DISTINCT k.key FROM {PENDING} p
     CROSS JOIN unnest(p.limit_key || coalesce(p.more_limit_keys, '{{}}')) AS k(key)
     WHERE p.state = '{State.RUNNING}' AND p.limit_key IS NOT NULL AND p.queue = :queue
     LIMIT {MOST_KEYS})
    UNION
    (SELECT DISTINCT p.parked_for FROM (
        SELECT p.parked_for, p.queue FROM {PENDING} p
        WHERE p.state = '{State.PENDING}' AND p.parked_kind = '{WaitingKind.KEY}'
        LIMIT {MOST_PARKED}) AS p
     WHERE p.queue = :queue LIMIT {MOST_KEYS})
    ORDER BY key
""")
_SHARES = text(f"""
    SELECT coalesce(p.fair_key, '') AS key, count(*) AS number FROM {PENDING} p
    WHERE p.state = '{State.RUNNING}' AND p.queue = :queue GROUP BY 1
""")
_QUEUES_OF = text(f"""
    SELECT p.id, p.queue FROM {PENDING} p WHERE p.id = ANY(CAST(:ids AS bigint[]))
""")


def held(connection: Connection, limits: Sequence[Limit]) -> dict[tuple[str, str], int]:
    """Return how many tasks each limit holds back, up to one more than MOST_HELD."""
    values = {"kinds": [str(x.kind) for x in limits], "targets": [x.target for x in limits]}
    return {(row.kind, row.target): row.number for row in connection.execute(_HELD, values)}


def limit_keys(connection: Connection, queue: str) -> list[str]:
    """Return limit keys of a queue's tasks that run, or wait for their limit."""
    return list(connection.execute(_KEYS, {"queue": queue}).scalars())


def running_by_fair_key(connection: Connection, queue: str) -> dict[str, int]:
    """Return how many run of each fair key; of those without one under the empty key."""
    rows = connection.execute(_SHARES, {"queue": queue})
    return {row.key: row.number for row in rows}


def queues_of(connection: Connection, ids: Iterable[int]) -> dict[int, str]:
    """Return the queues of tasks that wait or run."""
    rows = connection.execute(_QUEUES_OF, {"ids": list(ids)})
    return {row.id: row.queue for row in rows}
