"""Tasks at a shut gate: parked outside the scan, and woken when there is room."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import Capacity, tokens_of
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limits, WaitingKind
from tasks_app.domain.locks import LockRoom
from tasks_app.domain.tasks.records import text_array
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.flow_control.capacity import COLUMNS, capacities_of
from tasks_app.pool.fragments.conditions import UNPARKED, is_free, parked_as, queue_runs
from tasks_app.pool.fragments.move_rows import array
from tasks_app.pool.locks.declared import enter_lines
from tasks_app.pool.tables import GATE, NOW, PENDING, READY, Clock, admits_by_id

T = TypeVar("T")
Rooms: TypeAlias = Mapping[Gate, Capacity | LockRoom]
PARKED_FOR = "interval '1 day'"  # if the row is never woken
LOOK_AGAIN_S = 30.0
"""A gate is checked after this time even without a report of room: a child may die before it."""
SHORTEST_LOOK_S = 0.05
OLDER_RUN_LOOK_S = 1.0  # while a run may be older than the limit: its end reports no room
UNCOMMITTED = timedelta(seconds=10)  # for so long the transaction that wrote a limit may be open
_WAITED_FOR = text(f"""
    INSERT INTO {GATE} AS t (gate, look_at)
    SELECT g.gate, {NOW} + make_interval(secs => g.wait)
    FROM unnest(CAST(:gates AS text[]), CAST(:waits AS float8[])) AS g(gate, wait)
    ORDER BY g.gate COLLATE "C"
    ON CONFLICT (gate) DO UPDATE SET look_at = least(t.look_at, EXCLUDED.look_at)""")
_GIVEN = "(CAST(:held_by AS text[]))[array_position(CAST(:ids AS bigint[]), p.id)]"
_HELD_BY = {
    **{kind: f"p.{column}" for kind, column in COLUMNS.items()},
    GateKind.KEY: f"CASE WHEN p.more_limit_keys IS NULL THEN p.limit_key ELSE {_GIVEN} END",
    GateKind.LOCK: _GIVEN,
}
_PARK = {
    kind: text(f"""
    WITH parked AS MATERIALIZED (
        SELECT p.id FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
          AND p.due_at <= {NOW}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {PENDING} p SET scan_at = {NOW} + {PARKED_FOR},
        {parked_as(WaitingKind(kind), held_by)}
    WHERE p.id = ANY(ARRAY(SELECT id FROM parked))""")
    for kind, held_by in _HELD_BY.items()
}
_WAITING = text(f"""
    SELECT t.gate FROM {GATE} t
    WHERE t.gate = ANY(CAST(:gates AS text[])) AND t.look_at IS NOT NULL""")
_ANY_WAITS = text(f"SELECT EXISTS (SELECT FROM {GATE} t WHERE t.look_at IS NOT NULL)")
_OVERDUE = text(f"""
    SELECT t.gate FROM {GATE} t WHERE t.look_at <= {NOW} ORDER BY t.look_at LIMIT :most""")
_NEXT_LOOK = text(f"""
    SELECT CAST(EXTRACT(EPOCH FROM min(t.look_at) - {NOW}) AS float) FROM {GATE} t
    WHERE t.look_at IS NOT NULL""")


def park_at_gates(
    connection: Connection,
    held: Mapping[Gate, Sequence[int]],
    rooms: Rooms,
    limits: Limits,
    *,
    now: Clock = None,
) -> None:
    """Park tasks that their gate did not admit. Locked rows are left as they are."""
    if not held:
        return
    lines, in_lines = locks_among(rooms), locks_among(held)
    waited = {i for ids in in_lines.values() for i in ids}
    gates = {**held, **{g: () for g, line in lines.items() if not waited.isdisjoint(line.wanted)}}
    waits = [look_in_s(gate, rooms[gate], limits) for gate in gates]
    connection.execute(_WAITED_FOR, {"gates": text_array(gates), "waits": waits, "now": now})
    for kind in _PARK:
        keys = {i: g.key for g, some in held.items() if g.kind is kind for i in some}
        park = partial(_park, connection, kind, keys, now)
        row_by_row(connection, keys, park, "holding of tasks", now=now)
    enter_lines(connection, in_lines, lines, now=now)


def locks_among(gates: Mapping[Gate, T]) -> dict[Gate, Any]:
    return {gate: value for gate, value in gates.items() if gate.kind is GateKind.LOCK}


def _park(
    connection: Connection, kind: GateKind, keys: Mapping[int, str], now: Clock, ids: Sequence[int]
) -> None:
    named = kind in {GateKind.KEY, GateKind.LOCK}
    held_by = {"held_by": text_array(keys[i] for i in ids)} if named else {}
    connection.execute(_PARK[kind], {"ids": array(ids), **held_by, "now": now})


def gates_with_waiters(connection: Connection, gates: Collection[Gate]) -> list[Gate]:
    """Return the gates that hold tasks. Only a read; one probe while no gate holds any."""
    if not connection.execute(_ANY_WAITS).scalar():
        return []
    rows = connection.execute(_WAITING, {"gates": text_array(gates)}).scalars()
    return [Gate.parse(gate) for gate in rows]


def overdue_gates(connection: Connection, most: int, *, now: Clock = None) -> list[Gate]:
    """Return gates whose check is due. Only a read."""
    rows = connection.execute(_OVERDUE, {"most": most, "now": now}).scalars()
    return [Gate.parse(gate) for gate in rows]


def next_gate_check_in_s(connection: Connection, *, now: Clock = None) -> float | None:
    """Return the seconds until the next check of a gate; None: no gate holds tasks."""
    return connection.execute(_NEXT_LOOK, {"now": now}).scalar()


def look_in_s(gate: Gate, room: Capacity | LockRoom, limits: Limits) -> float:
    """Return the seconds until bucket or head may admit a task, at most ``LOOK_AGAIN_S``."""
    if isinstance(room, LockRoom):
        return LOOK_AGAIN_S
    limit = limits.of(gate)
    if gate.kind is not GateKind.ORDER and limit is None:
        return 0.0  # the limit was removed, and tasks still wait
    if limit is None or limit.burst is None or math.isinf(room.tokens):
        wait_s = min(LOOK_AGAIN_S, room.leaves_s)
    else:
        left = room.tokens - int(room.open)
        wait_s = (max(1.0, limit.burst // 2) - left) / limit.per_second
    changed_at = limit and limit.changed_at
    if changed_at and room.since and room.since < changed_at + UNCOMMITTED:
        wait_s = min(wait_s, OLDER_RUN_LOOK_S)
    return max(SHORTEST_LOOK_S, wait_s)


MOST_WOKEN = 1_000  # of one gate at a time
FARTHER = 1_000  # rows read in addition if the first ones may not run …
MOST_READS = 5  # … and how often in one transaction; the next check, at once, goes on after them
UNUSED_S = 1.0  # then the gate is checked again: perhaps no child was free to use the wake-up
_LINE = text(f"""
    SELECT g.place, p.*
    FROM unnest(CAST(:kinds AS text[]), CAST(:keys AS text[]), CAST(:numbers AS int[]),
                CAST(:heads AS bigint[]), CAST(:priorities AS smallint[]),
                CAST(:afters AS bigint[]))
        WITH ORDINALITY AS g(kind, key, number, head, priority, after, place)
    CROSS JOIN LATERAL (
        SELECT p.id, p.priority, p.queue, p.name, p.order_key, p.limit_key, p.more_limit_keys,
            p.weight, {READY} AND {queue_runs("p.queue")} AND {is_free()} AS may_run
        FROM {PENDING} p
        WHERE p.state = '{State.PENDING}' AND p.parked_kind = g.kind AND p.parked_for = g.key
          AND (g.head IS NULL OR p.id = g.head) AND (p.priority, p.id) > (g.priority, g.after)
        ORDER BY p.priority, p.id LIMIT g.number FOR NO KEY UPDATE SKIP LOCKED) AS p
    ORDER BY g.place, p.priority, p.id""")
_PLACE = "array_position(CAST(:gates AS text[]), t.gate)"
_WAIT = f"(CAST(:waits AS float8[]))[{_PLACE}]"
_GO_ON = text(f"""
    WITH woken AS (
        UPDATE {PENDING} p SET scan_at = greatest({NOW}, p.due_at), {UNPARKED}
        WHERE p.id = ANY(CAST(:ids AS bigint[])))
    UPDATE {GATE} t SET look_at = CASE
        WHEN EXISTS (SELECT FROM {PENDING} p
                     WHERE p.state = '{State.PENDING}'
                       AND p.parked_kind = (CAST(:kinds AS text[]))[{_PLACE}]
                       AND p.parked_for = (CAST(:keys AS text[]))[{_PLACE}]
                       AND p.id <> ALL (CAST(:ids AS bigint[])))
        THEN {NOW} + make_interval(secs => {_WAIT}) END
    WHERE t.gate = ANY(CAST(:gates AS text[]))""")
_TOUCH = text(f"""
    UPDATE {PENDING} p SET scan_at = p.scan_at, parked = p.parked
    WHERE p.id = ANY(CAST(:ids AS bigint[])) RETURNING p.id""")
_FRONT = (-1, 0)  # a priority and id before all others


def wake_tasks(
    connection: Connection,
    rooms: Mapping[Gate, Capacity],
    limits: Limits,
    most: Mapping[Gate, int] | None = None,
    *,
    careful: bool = False,
    now: Clock = None,
) -> list[tuple[str, int]]:
    """Wake tasks as far as there is room; return queue and id of each that may run now."""
    # The caller has locked the gates. ``most`` bounds each gate by the number of ended runs.
    # ``careful``: a task whose row the database refuses to change takes no room.
    waits = {gate: look_in_s(gate, room, limits) for gate, room in rooms.items()}
    ended = dict.fromkeys(rooms, MOST_WOKEN) if most is None else most
    left = {g: int(min(room.open, ended.get(g, 0), MOST_WOKEN)) for g, room in rooms.items()}
    left = {gate: number for gate, number in left.items() if number}
    unread = dict.fromkeys(left, _FRONT)
    ids: list[int] = []
    woken: list[tuple[str, int]] = []
    for read in range(MOST_READS):
        if not unread:
            break
        wanted = {gate: left[gate] + read * FARTHER for gate in unread}
        line = _read(connection, wanted, rooms, unread, now)
        gates = list(unread)
        elsewhere = _elsewhere(connection, line, gates, limits, now)
        changeable = _changeable(connection, line, now) if careful else None
        for row in line:
            gate, others = gates[row.place - 1], elsewhere.get(row.id)
            if not left[gate]:
                continue
            unread[gate] = (row.priority, row.id)
            if changeable is not None and row.id not in changeable:
                continue
            ids.append(row.id)
            if others is not None and all(room.admits(row.id) for room in others.values()):
                for each, room in (*others.items(), (gate, rooms[gate])):
                    room.enter(row.id, tokens_of(each, row.weight))
                left[gate] = int(min(left[gate] - 1, rooms[gate].open))
                woken.append((row.queue, row.id))
                waits[gate] = min(waits[gate], UNUSED_S)
        there = Counter(gates[row.place - 1] for row in line)
        unread = {g: at for g, at in unread.items() if left[g] and there[g] == wanted[g]}
    waits |= dict.fromkeys(unread, SHORTEST_LOOK_S)
    values = {"ids": array(ids), "gates": text_array(waits), "waits": list(waits.values())}
    connection.execute(_GO_ON, {**values, **_columns(waits), "now": now})
    return woken


def _changeable(connection: Connection, line: Sequence[Any], now: Clock) -> set[int]:
    def touch(ids: Sequence[int]) -> list[int]:
        return list(connection.execute(_TOUCH, {"ids": array(ids)}).scalars())

    parts = row_by_row(connection, [row.id for row in line], touch, "waking of tasks", now=now)
    return {task_id for part in parts for task_id in part}


def _read(
    connection: Connection,
    wanted: Mapping[Gate, int],
    rooms: Mapping[Gate, Capacity],
    after: Mapping[Gate, tuple[int, int]],
    now: Clock,
) -> Sequence[Any]:
    """Read the lines of gates after ``after``; locked rows are left out."""
    values = {
        **_columns(wanted),
        "numbers": array(wanted.values()),
        "heads": array(rooms[gate].head for gate in wanted),
        "priorities": array(after[gate][0] for gate in wanted),
        "afters": array(after[gate][1] for gate in wanted),
    }
    return connection.execute(_LINE, {**values, "now": now}).all()


def _columns(gates: Collection[Gate]) -> dict[str, str]:
    return {
        "kinds": array(gate.kind for gate in gates),
        "keys": text_array(gate.key for gate in gates),
    }


def _elsewhere(
    connection: Connection, line: Sequence[Any], gates: Sequence[Gate], limits: Limits, now: Clock
) -> dict[int, dict[Gate, Capacity]]:
    """Return the capacity of the other gates of the tasks that may run."""
    others: dict[int, list[Gate]] = {}
    for row in line:
        if row.may_run:
            keys = row.queue, row.name, row.order_key, row.limit_key, row.more_limit_keys
            here = gates[row.place - 1]
            others[row.id] = [gate for gate in limits.gates_of(*keys) if gate != here]
    rooms = capacities_of(
        connection, {g for some in others.values() for g in some}, limits, now=now
    )
    return {task_id: {gate: rooms[gate] for gate in some} for task_id, some in others.items()}
