"""Gates of tasks: order keys and limits; waiting tasks, tasks that surely pass, the limits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import sample
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import Waiting
from tasks_app.domain.flow_control.limits import (
    REASON_WORDS,
    Gate,
    GateKind,
    Limit,
    Limits,
    WaitingKind,
)
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.execute import Statement, fetch, to_psycopg_sql
from tasks_app.pool.fragments.conditions import (
    CLEAR,
    LIMIT_OF_KEY,
    is_free,
    is_parked_as,
    queue_runs,
)
from tasks_app.pool.fragments.move_rows import array
from tasks_app.pool.locks.declared import gates_of_locks
from tasks_app.pool.tables import (
    COMPLETED,
    ERROR,
    GATE,
    LIMIT,
    NOW,
    PENDING,
    READY,
    UNGATED,
    Clock,
    admits_by_id,
)

FULL_AGAIN = "interval '366 days'"  # the longest period: after it any bucket is full
FRONT = 100  # rows of a queue and priority that are read
_LIMITS = text(f"SELECT kind, target, most, rate, period, burst, changed_at FROM {LIMIT}")
_WAITING = text(f"""
    SELECT p.id, p.queue, p.name, p.order_key, p.limit_key, p.more_limit_keys, p.locks,
        p.weight, {is_parked_as(WaitingKind.LOCK)} AS has_place
    FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)} AND {READY}
      AND (CAST(:names AS text[]) IS NULL OR p.name = ANY(CAST(:names AS text[])))
      AND (p.parked IS NULL OR p.scan_at <= {NOW}) AND {queue_runs("p.queue")} AND {is_free()}
      AND NOT ({UNGATED})
    ORDER BY p.priority, p.id""")
_IN_FRONT = text(f"""
    SELECT p.id
    FROM unnest(CAST(:queues AS text[])) AS q(queue)
    CROSS JOIN generate_series(0, 9) AS r(priority)
    CROSS JOIN LATERAL (
        SELECT p.id, p.name, p.queue, p.order_key, p.limit_key, p.locks FROM {PENDING} p
        WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
          AND p.scan_at <= {NOW}
        ORDER BY p.scan_at, p.id LIMIT {FRONT}) AS p
    WHERE (NOT ({UNGATED}) OR p.name = ANY(CAST(:locking AS text[])))
      AND p.name = ANY(CAST(:names AS text[]))""")
_KEYS_OF = text(
    " UNION ALL ".join(
        f"""
    SELECT t.queue, t.name, t.order_key, t.limit_key, t.more_limit_keys, t.locks FROM {pool} t
    WHERE t.id = ANY(CAST(:ids AS bigint[])) AND {just_now}"""
        for pool, just_now in (
            (PENDING, "true"),
            (ERROR, "true"),
            (COMPLETED, f"t.finished_at > {NOW} - interval '1 hour'"),
        )
    )
)
_PRUNE = text(f"""
    WITH idle AS MATERIALIZED (
        SELECT t.gate FROM {GATE} t
        WHERE t.look_at IS NULL AND coalesce(t.filled_at < {NOW} - {FULL_AGAIN}, true)
          AND NOT EXISTS (SELECT FROM {PENDING} p
                          WHERE p.order_key = substr(t.gate, {len("order ") + 1})
                            AND starts_with(t.gate, 'order ') OFFSET 0)
        LIMIT :most FOR UPDATE OF t SKIP LOCKED)
    DELETE FROM {GATE} t WHERE t.gate = ANY(ARRAY(SELECT gate FROM idle))""")


@dataclass(frozen=True)
class WaitingTasks:
    waiting: list[Waiting]
    limits: Limits

    @cached_property
    def gates(self) -> list[Gate]:
        return list(dict.fromkeys(gate for each in self.waiting for gate in each.gates))


def waiting(
    connection: Connection,
    ids: Sequence[int],
    names: Collection[str] | None = None,
    most: int | None = None,
    *,
    now: Clock = None,
) -> WaitingTasks:
    """Return those of ``ids`` that may be claimed if gates admit them; None: of any name."""
    # ``most``: of the tasks that want locks about so many, in order; but of those that are awake
    # any, as each has its place: processes that judge the same ones would wait for each other.
    values = {"ids": array(map(int, ids)), "names": names and list(names), "now": now}
    rows = connection.execute(_WAITING, values).all() if ids else []
    if most is not None:
        placed = [row.id for row in rows if row.has_place]
        new = [row.id for row in rows if row.locks is not None and not row.has_place]
        left = {*new[most:], *sample(placed, max(0, len(placed) - most))}
        rows = [row for row in rows if row.id not in left]
    limits = read_limits(connection) if rows else Limits()
    found = [
        Waiting(task_id, limits.gates_of(*keys) + gates_of_locks(locks), locks, weight)
        for task_id, *keys, locks, weight, _ in rows
    ]
    return WaitingTasks(found, limits)


def find_gated_tasks(
    connection: Connection,
    queues: Sequence[str],
    names: Collection[str],
    locking: Collection[str] = (),
) -> list[int]:
    """Return ids of due gated tasks, for a child without messages. Only a read."""
    # ``locking``: names whose handlers declare locks.
    values = {"queues": list(queues), "names": list(names), "locking": list(locking), "now": None}
    return list(connection.execute(_IN_FRONT, values).scalars())


def gates_of_tasks(
    connection: Connection, ids: Collection[int], *, now: Clock = None
) -> list[Gate]:
    """Return the gates of tasks that have just ended or left the pool."""
    found = connection.execute(_KEYS_OF, {"ids": array(map(int, ids)), "now": now}).all()
    limits = read_limits(connection) if found else Limits()
    of = ((*limits.gates_of(*keys), *gates_of_locks(locks)) for *keys, locks in found)
    return list(dict.fromkeys(gate for gates in of for gate in gates))


def read_limits(connection: Connection) -> Limits:
    return Limits(Limit(GateKind(kind), *rest) for kind, *rest in connection.execute(_LIMITS))


def prune_gates(connection: Connection, most: int, *, now: Clock = None) -> int:
    """Remove gates that were long unused, without waiting for locks; return how many."""
    # A claim that misses its gate creates it and tries again.
    return connection.execute(_PRUNE, {"most": most, "now": now}).rowcount


_UNBLOCK = text(f"""
    UPDATE {ERROR} e SET order_skips = true
    WHERE e.id = :id AND e.order_key IS NOT NULL AND e.order_skips IS NOT TRUE
    RETURNING e.order_key""")
_CHECK_ORDER_GATE = text(f"""
    UPDATE {GATE} t SET look_at = {NOW} WHERE t.gate = :gate AND t.look_at IS NOT NULL""")


def unblock(connection: Connection, task_id: int, *, now: Clock = None) -> bool:
    """Let the tasks behind a failed one go on; False: the task is not there, or blocks none."""
    key = connection.execute(_UNBLOCK, {"id": task_id}).scalar()
    if key is None:
        return False
    connection.execute(_CHECK_ORDER_GATE, {"gate": str(Gate(GateKind.ORDER, key)), "now": now})
    return True


_ORDER, _KEY = GateKind.ORDER, GateKind.KEY
_PASSING = text(f"""
    SELECT array_agg(p.id) FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)} AND {READY}
      AND {queue_runs("p.queue")} AND {is_free()} AND {CLEAR}""")
# An insert that finds the row waits for its lock. The update that changes nothing locks it without
# a write.
_LOCK = to_psycopg_sql(f"""
    WITH keyed AS MATERIALIZED (
        SELECT p.id, p.priority, p.order_key, p.limit_key FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
          AND (p.order_key IS NOT NULL OR p.limit_key IS NOT NULL)),
    locked AS (
        INSERT INTO {GATE} AS t (gate)
        SELECT g.gate FROM (
            SELECT DISTINCT '{REASON_WORDS[_ORDER]} ' || k.order_key AS gate FROM keyed k
            WHERE k.order_key IS NOT NULL
            UNION ALL
            SELECT '{REASON_WORDS[_KEY]} ' || k.key
            FROM (SELECT DISTINCT k.limit_key AS key FROM keyed k
                  WHERE k.limit_key IS NOT NULL) AS k
            {LIMIT_OF_KEY}) AS g
        ORDER BY g.gate COLLATE "C"
        ON CONFLICT (gate) DO UPDATE SET look_at = t.look_at WHERE false)
    SELECT id, order_key, limit_key FROM keyed ORDER BY priority, id""")


def find_clear_tasks(connection: Connection, ids: Sequence[int], *, now: Clock = None) -> set[int]:
    """Return those of ``ids`` that surely pass now; perhaps more would. Only a read."""
    values = {"ids": array(map(int, ids)), "now": now}
    return set(connection.execute(_PASSING, values).scalar() or ())


def lock_gates(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[Gate, ...]]:
    """Lock the gates of the keys of ``ids`` in one order, inserting missing ones; return them."""
    # Tasks without keys are left out. Those of the best priority come first.
    found: dict[int, tuple[Gate, ...]] = {}
    statement = Statement(_LOCK, {"ids": array(map(int, ids))})
    for task_id, order_key, limit_key in fetch(connection, statement):
        gates: tuple[Gate, ...] = ()  # by tuple itself, which is faster than the class
        if order_key is not None:
            gates = (tuple.__new__(Gate, (_ORDER, order_key)),)
        if limit_key is not None:
            gates += (tuple.__new__(Gate, (_KEY, limit_key)),)
        found[task_id] = gates
    return found


_SET = text(f"""
    INSERT INTO {LIMIT} (kind, target, most, rate, period, burst, changed_at)
    VALUES (:kind, :target, :most, :rate, :period, :burst, {NOW})
    ON CONFLICT (kind, target) DO UPDATE SET
        most = EXCLUDED.most, rate = EXCLUDED.rate, period = EXCLUDED.period,
        burst = EXCLUDED.burst, changed_by = current_user, changed_at = EXCLUDED.changed_at""")
_DROP = text(f"DELETE FROM {LIMIT} WHERE kind = :kind AND target = :target")
_LIST = text(f"SELECT kind, target, most, rate, period, burst FROM {LIMIT} ORDER BY kind, target")
_CHECK_GATES_SOON = text(f"""
    UPDATE {GATE} t SET look_at = {NOW}
    WHERE starts_with(t.gate, :prefix) AND t.look_at IS NOT NULL""")


def set_limit(connection: Connection, limit: Limit, *, now: Clock = None) -> None:
    """Set or change a limit; the leader checks the waiting tasks at once."""
    values: dict[str, Any] = {"kind": str(limit.kind), "target": limit.target, "most": limit.most}
    values |= {"rate": limit.rate, "period": limit.period, "burst": limit.burst}
    connection.execute(_SET, {**values, "now": now})
    _check_gates_soon(connection, limit.kind, limit.target, now)


def drop_limit(connection: Connection, kind: GateKind, target: str, *, now: Clock = None) -> bool:
    """Remove a limit; False: there was none."""
    dropped = connection.execute(_DROP, {"kind": str(kind), "target": target}).rowcount == 1
    _check_gates_soon(connection, kind, target, now)
    return dropped


def all_limits(connection: Connection) -> list[Limit]:
    return [Limit(GateKind(kind), *rest) for kind, *rest in connection.execute(_LIST)]


def _check_gates_soon(connection: Connection, kind: GateKind, target: str, now: Clock) -> None:
    prefix = str(Gate(kind, target.removesuffix("*") if kind is GateKind.KEY else target))
    connection.execute(_CHECK_GATES_SOON, {"prefix": prefix, "now": now})
