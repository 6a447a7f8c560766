"""Capacity of gates: limits, token buckets and order keys.

Running tasks are counted each time, so any end of a run makes room. A decision under the lock of a
gate's row is exact. Gates are locked in one order, and no row of a task is waited for under them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import Capacity, TokenBucket, capacity_of
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limits
from tasks_app.domain.tasks.records import text_array
from tasks_app.domain.tasks.states import State
from tasks_app.pool.locks.declared import insert_declared, resources_of
from tasks_app.pool.tables import ERROR, GATE, NOW, PENDING, Clock

_ENTER = text(f"""
    INSERT INTO {GATE} (gate)
    SELECT g.gate FROM unnest(CAST(:gates AS text[])) AS g(gate)
    WHERE NOT EXISTS (SELECT FROM {GATE} t WHERE t.gate = g.gate)
    ORDER BY g.gate COLLATE "C" ON CONFLICT (gate) DO NOTHING""")
_BUCKETS = f"""
    SELECT t.gate, t.tokens, CAST(EXTRACT(EPOCH FROM {NOW} - t.filled_at) AS float), {NOW}
    FROM {GATE} t WHERE t.gate = ANY(CAST(:gates AS text[]))
"""
_READ = text(_BUCKETS)
_LOCK = text(f"""{_BUCKETS} ORDER BY t.gate COLLATE "C" FOR NO KEY UPDATE OF t""")

# which column of a task names its gate of each kind; of several limit keys, the first one's gate
COLUMNS = {
    GateKind.ORDER: "order_key",
    GateKind.QUEUE: "queue",
    GateKind.NAME: "name",
    GateKind.KEY: "limit_key",
}
# Kinds without keys are not read.
_RUNNING = " UNION ALL ".join(
    f"""
    SELECT '{kind}' AS kind, p.{column} AS key, count(*), min(p.started_at) FROM {PENDING} p
    WHERE p.state = '{State.RUNNING}' AND p.{column} IS NOT NULL
      AND p.{column} = ANY(CAST(:{kind} AS text[])) AND CAST(:{kind} AS text[]) <> '{{}}'
    GROUP BY p.{column}"""
    for kind, column in COLUMNS.items()
)
# Running tasks with several keys are few, and have an index: all are read.
_ALSO_BY_MORE_KEYS = f""" UNION ALL
    SELECT '{GateKind.KEY}', m.key, count(*), min(m.started_at) FROM (
        SELECT unnest(p.more_limit_keys) AS key, p.started_at FROM {PENDING} p
        WHERE p.state = '{State.RUNNING}' AND p.more_limit_keys IS NOT NULL) AS m
    WHERE m.key = ANY(CAST(:{GateKind.KEY} AS text[])) GROUP BY m.key"""
_RUNNING_BY_KEYS, _RUNNING_BY_OTHERS = text(_RUNNING + _ALSO_BY_MORE_KEYS), text(_RUNNING)
# A task that waits for its retry keeps its place, unless it skips.
_HEADS = text(f"""
    SELECT g.key, h.id, CAST(EXTRACT(EPOCH FROM h.expires_at - {NOW}) AS float) AS leaves_s
    FROM unnest(CAST(:keys AS text[])) AS g(key)
    CROSS JOIN LATERAL (
        SELECT p.id, p.expires_at FROM {PENDING} p
        WHERE p.order_key = g.key AND p.state = '{State.PENDING}' AND p.enabled
          AND (p.expires_at IS NULL OR p.expires_at > {NOW})
          AND (p.due_at <= {NOW} OR p.attempt > 0 AND p.order_skips IS NOT TRUE)
        ORDER BY p.id LIMIT 1) AS h
    WHERE NOT EXISTS (
        SELECT FROM {ERROR} e
        WHERE e.order_key = g.key AND e.id < h.id AND e.order_skips IS NOT TRUE OFFSET 0)""")
_SPEND = text(f"""
    UPDATE {GATE} t SET filled_at = greatest(t.filled_at, CAST(:at AS timestamptz)),
        tokens = (CAST(:tokens AS float8[]))[array_position(CAST(:gates AS text[]), t.gate)]
    WHERE t.gate = ANY(CAST(:gates AS text[]))""")


def insert_gates(connection: Connection, gates: Collection[Gate]) -> None:
    """Insert missing rows of gates and resources; COMMIT before they are locked."""
    if gates:
        connection.execute(_ENTER, {"gates": text_array(gates)})
    if resources := resources_of(gates):
        insert_declared(connection, resources)


def lock_buckets(
    connection: Connection, gates: Collection[Gate], *, now: Clock = None
) -> dict[Gate, TokenBucket]:
    """Lock the gates in one order; return the buckets of those that have a row."""
    # Until the transaction ends, no other claim changes what is read.
    return _buckets(connection, _LOCK, gates, now)


def capacities_of(
    connection: Connection,
    gates: Collection[Gate],
    limits: Limits,
    buckets: Mapping[Gate, TokenBucket] | None = None,
    *,
    now: Clock = None,
) -> dict[Gate, Capacity]:
    """Return the capacity of each gate but locks; ``buckets``: what lock_buckets returned."""
    gates = [gate for gate in gates if gate.kind is not GateKind.LOCK]
    if not gates:
        return {}
    if buckets is None:
        limited = [gate for gate in gates if limits.has_bucket(gate)]
        buckets = _buckets(connection, _READ, limited, now)
    running = _running(connection, gates)
    heads = _heads(connection, [gate.key for gate in gates if gate.kind is GateKind.ORDER], now)
    rooms: dict[Gate, Capacity] = {}
    for gate in gates:
        head, leaves_s = heads.get(gate.key, (None, None))
        limit, bucket = limits.of(gate), buckets.get(gate)
        number, since = running.get(gate, (0, None))
        rooms[gate] = capacity_of(gate, limit, number, head, bucket)
        rooms[gate].since = since
        rooms[gate].leaves_s = math.inf if leaves_s is None else leaves_s
    return rooms


def spend_tokens(
    connection: Connection, started: Counter[Gate], rooms: Mapping[Gate, Capacity]
) -> None:
    """Take the tokens of the starts from the buckets, under the locks."""
    spent = [gate for gate in started if gate in rooms and not math.isinf(rooms[gate].tokens)]
    for gate in spent:
        rooms[gate].tokens -= started[gate]
    if spent:
        values = {
            "gates": text_array(spent),
            "tokens": [rooms[gate].tokens for gate in spent],
            "at": max(rooms[gate].at for gate in spent),
        }
        connection.execute(_SPEND, values)


def _buckets(
    connection: Connection, statement: object, gates: Iterable[Gate], now: Clock
) -> dict[Gate, TokenBucket]:
    named = {str(gate): gate for gate in gates}
    if not named:
        return {}
    rows = connection.execute(statement, {"gates": text_array(named), "now": now})  # type: ignore[call-overload]
    return {
        named[gate]: TokenBucket(tokens, since_s or 0.0, at) for gate, tokens, since_s, at in rows
    }


def _running(
    connection: Connection, gates: Iterable[Gate]
) -> dict[Gate, tuple[int, datetime | None]]:
    """Return how many tasks run under each gate, and since when the first does."""
    keys: dict[str, list[str]] = {kind: [] for kind in COLUMNS}
    for kind, key in gates:
        keys[kind].append(key)
    values = {kind: text_array(some) for kind, some in keys.items()}
    found: dict[Gate, tuple[int, datetime | None]] = {}
    statement = _RUNNING_BY_KEYS if keys[GateKind.KEY] else _RUNNING_BY_OTHERS
    for kind, key, number, since in connection.execute(statement, values):
        gate = Gate(GateKind(kind), key)
        more, first = found.get(gate, (0, since))
        found[gate] = number + more, min(first, since)
    return found


def _heads(
    connection: Connection, keys: list[str], now: Clock
) -> dict[str, tuple[int, float | None]]:
    """Return the first task of each order key, and in how many seconds it expires."""
    if not keys:
        return {}
    rows = connection.execute(_HEADS, {"keys": text_array(keys), "now": now})
    return {row.key: (row.id, row.leaves_s) for row in rows}
