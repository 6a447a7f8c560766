"""Gates in SQL: what tasks must pass, and how each gate stands.

Who runs is counted each time: a run that ends, however it ends, makes room. What is decided under
the lock of a gate's row is exact; the locks are taken in one order, and no row of a task is waited
for under them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.gates import Gate, Kind, Limit, Limits, Room, Wish, room_of
from tasks_app.domain.states import Event, State
from tasks_app.domain.task import HINT_WAIT
from tasks_app.pool.fences import array
from tasks_app.pool.standstill import is_free, runs
from tasks_app.pool.tables import (
    ERROR,
    GATE,
    LIMIT,
    NOW,
    PENDING,
    READY,
    UNGATED,
    admits_by_id,
)

FULL_AGAIN = "interval '366 days'"
"""As long as the longest period: after that any bucket is full, with a row or without."""
FRONT = 100
"""Rows of a queue and priority that are looked at: those behind them wait for their turn."""

_LIMITS = text(f"SELECT kind, target, most, rate, period, burst FROM {LIMIT}")
_WISHES = text(f"""
    SELECT p.id, p.queue, p.name, p.order_key, p.limit_key FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)} AND {READY}
      AND (CAST(:names AS text[]) IS NULL OR p.name = ANY(CAST(:names AS text[])))
      AND (p.parked IS NULL OR p.scan_at <= {NOW}) AND {runs("p.queue")} AND {is_free()}
      AND NOT ({UNGATED})
    ORDER BY p.priority, p.id
""")
_IN_FRONT = text(f"""
    SELECT p.id
    FROM unnest(CAST(:queues AS text[])) AS q(queue)
    CROSS JOIN generate_series(0, 9) AS r(priority)
    CROSS JOIN LATERAL (
        SELECT p.id, p.name, p.queue, p.order_key, p.limit_key FROM {PENDING} p
        WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
          AND p.scan_at <= {NOW} + CAST(:hint_wait AS interval)
          AND (p.scan_at <= {NOW} OR p.parked IS NULL)
        ORDER BY p.scan_at, p.id LIMIT {FRONT}) AS p
    WHERE NOT ({UNGATED}) AND p.name = ANY(CAST(:names AS text[]))
""")
_KEYS_OF = text(
    " UNION ALL ".join(
        f"""
    SELECT t.queue, t.name, t.order_key, t.limit_key FROM {pool} t
    WHERE t.id = ANY(CAST(:ids AS bigint[]))"""
        for pool in (PENDING, ERROR)
    )
)
_ENTER = text(f"""
    INSERT INTO {GATE} (gate)
    SELECT g.gate FROM unnest(CAST(:gates AS text[])) AS g(gate)
    WHERE NOT EXISTS (SELECT FROM {GATE} t WHERE t.gate = g.gate)
    ORDER BY g.gate COLLATE "C" ON CONFLICT (gate) DO NOTHING
""")
_LOCK = text(f"""
    SELECT t.gate FROM {GATE} t WHERE t.gate = ANY(CAST(:gates AS text[]))
    ORDER BY t.gate COLLATE "C" FOR NO KEY UPDATE
""")


def _running(column: str) -> str:
    return f"""(SELECT count(*) FROM {PENDING} p
        WHERE p.state = '{State.RUNNING}' AND p.{column} = g.key)"""


# Whoever has begun and waits to be tried again keeps its place, unless it skips.
_HEAD = f"""
    SELECT h.id FROM (
        SELECT p.id FROM {PENDING} p
        WHERE p.order_key = g.key AND p.state = '{State.PENDING}' AND p.enabled
          AND (p.expires_at IS NULL OR p.expires_at > {NOW})
          AND (p.due_at <= {NOW} OR p.attempt > 0 AND p.order_skips IS NOT TRUE)
        ORDER BY p.id LIMIT 1) AS h
    WHERE NOT EXISTS (
        SELECT FROM {ERROR} e
        WHERE e.order_key = g.key AND e.id < h.id AND e.order_skips IS NOT TRUE OFFSET 0)
"""
_STATE = text(f"""
    SELECT {NOW} AS at, g.place, t.tokens,
        CAST(EXTRACT(EPOCH FROM {NOW} - t.filled_at) AS float) AS since_s,
        CASE g.kind
        WHEN '{Kind.ORDER}' THEN (
            SELECT count(*) FROM (
                SELECT FROM {PENDING} p
                WHERE p.state = '{State.RUNNING}' AND p.order_key = g.key LIMIT 1) AS one)
        WHEN '{Kind.KEY}' THEN {_running("limit_key")}
        WHEN '{Kind.NAME}' THEN {_running("name")}
        WHEN '{Kind.QUEUE}' THEN {_running("queue")} END AS running,
        CASE WHEN g.kind = '{Kind.ORDER}' THEN ({_HEAD}) END AS head
    FROM unnest(CAST(:kinds AS text[]), CAST(:keys AS text[]), CAST(:gates AS text[]))
        WITH ORDINALITY AS g(kind, key, gate, place)
    LEFT JOIN LATERAL (
        SELECT t.tokens, t.filled_at FROM {GATE} t WHERE t.gate = g.gate OFFSET 0) AS t ON true
""")
_SPEND = text(f"""
    UPDATE {GATE} t SET filled_at = greatest(t.filled_at, CAST(:at AS timestamptz)),
        tokens = (CAST(:tokens AS float8[]))[array_position(CAST(:gates AS text[]), t.gate)]
    WHERE t.gate = ANY(CAST(:gates AS text[]))
""")


_PRUNE = text(f"""
    WITH idle AS MATERIALIZED (
        SELECT t.gate FROM {GATE} t
        WHERE t.look_at IS NULL AND coalesce(t.filled_at < {NOW} - {FULL_AGAIN}, true)
          AND NOT EXISTS (SELECT FROM {PENDING} p
                          WHERE p.order_key = substr(t.gate, {len("order ") + 1})
                            AND starts_with(t.gate, 'order ') OFFSET 0)
        LIMIT :most FOR UPDATE OF t SKIP LOCKED)
    DELETE FROM {GATE} t WHERE t.gate = ANY(ARRAY(SELECT gate FROM idle))
""")


class Wishes(NamedTuple):
    """Due tasks that gates stand before, the first first, and what is allowed."""

    wishes: list[Wish]
    limits: Limits

    @property
    def gates(self) -> list[Gate]:
        """All gates of all of them."""
        return list(dict.fromkeys(gate for wish in self.wishes for gate in wish.gates))


def wishes(
    connection: Connection,
    ids: Sequence[int],
    names: Collection[str] | None = None,
    *,
    now: datetime | None = None,
) -> Wishes:
    """Return those of ``ids`` that are there to take, once they pass; with one of ``names``."""
    values = {"ids": array(map(int, ids)), "names": names and list(names), "now": now}
    rows = connection.execute(_WISHES, values).all()
    limits = limits_of(connection) if rows else Limits()
    return Wishes([Wish(row[0], limits.gates_of(*row[1:])) for row in rows], limits)


def in_front(
    connection: Connection,
    queues: Sequence[str],
    names: Collection[str],
    *,
    now: datetime | None = None,
) -> list[int]:
    """Return ids of due tasks that gates stand before, for who hears no messages. Only a read."""
    values = {"queues": list(queues), "names": list(names), "hint_wait": HINT_WAIT, "now": now}
    return list(connection.execute(_IN_FRONT, values).scalars())


def passed_by(connection: Connection, ids: Collection[int]) -> list[Gate]:
    """Return the gates that these tasks passed, if they run no more; also of such that failed."""
    found = connection.execute(_KEYS_OF, {"ids": array(map(int, ids))}).all()
    limits = limits_of(connection) if found else Limits()
    return list(dict.fromkeys(gate for row in found for gate in limits.gates_of(*row)))


def limits_of(connection: Connection) -> Limits:
    """Return what is allowed."""
    return Limits(Limit(Kind(kind), *rest) for kind, *rest in connection.execute(_LIMITS))


def enter(connection: Connection, gates: Collection[Gate]) -> None:
    """Make rows for gates that have none; COMMIT before they are locked."""
    if gates:
        connection.execute(_ENTER, {"gates": list(map(str, gates))})


def lock(connection: Connection, gates: Collection[Gate]) -> list[Gate]:
    """Lock the gates, one after the other in one order; return those that have a row.

    What is read after this, and before the end of the transaction, no other claim changes.
    """
    if not gates:
        return []
    rows = connection.execute(_LOCK, {"gates": list(map(str, gates))}).scalars()
    return [Gate.parse(gate) for gate in rows]


def rooms(
    connection: Connection, gates: Sequence[Gate], limits: Limits, *, now: datetime | None = None
) -> dict[Gate, Room]:
    """Return how the gates stand."""
    if not gates:
        return {}
    rows = connection.execute(
        _STATE,
        {
            "kinds": [str(gate.kind) for gate in gates],
            "keys": [gate.key for gate in gates],
            "gates": list(map(str, gates)),
            "now": now,
        },
    )
    found = {}
    for row in rows:
        gate = gates[row.place - 1]
        state = (row.running, row.head, row.tokens, row.since_s or 0.0)
        found[gate] = room_of(gate, limits.of(gate), *state)
        found[gate].at, found[gate].running = row.at, row.running
    return found


def spend(connection: Connection, started: Counter[Gate], rooms: Mapping[Gate, Room]) -> None:
    """Take a token for each start out of the buckets, as they stood; under the locks."""
    spent = [gate for gate in started if not math.isinf(rooms[gate].tokens)]
    for gate in spent:
        rooms[gate].tokens -= started[gate]
    if spent:
        values = {
            "gates": list(map(str, spent)),
            "tokens": [rooms[gate].tokens for gate in spent],
            "at": max(rooms[gate].at for gate in spent),
        }
        connection.execute(_SPEND, values)


def prune(connection: Connection, most: int, *, now: datetime | None = None) -> int:
    """Remove gates that nobody came to for long, and return their number; waits for nobody.

    Who came in vain to the lock of one that goes is looked at again, and it is made anew.
    """
    return connection.execute(_PRUNE, {"most": most, "now": now}).rowcount
