"""Wake: held tasks go on when their gate has room, the first first.

A wake-up counts only if its task may run now. A task before it in line that may not, because its
queue stands still, a breaker or another gate holds it, or it never runs again, goes back to its
queue uncounted: the scan finds it there when its time has come, or it is swept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import Capacity
from tasks_app.domain.flow_control.limits import Gate, Limits
from tasks_app.domain.tasks.states import State
from tasks_app.domain.text_array import text_array
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.flow_control.capacity import rooms_of
from tasks_app.pool.flow_control.waiting_list import SHORTEST_LOOK_S, look_in_s
from tasks_app.pool.fragments.conditions import is_free
from tasks_app.pool.fragments.conditions import runs
from tasks_app.pool.fragments.fences import array
from tasks_app.pool.fragments.parked import UNPARKED
from tasks_app.pool.tables import GATE, NOW, PENDING, READY

MOST_WOKEN = 1_000
"""Of one gate at a time."""
FARTHER = 1_000
"""Rows read in addition where those in front may not run …"""
MOST_READS = 5
"""… and how often in one transaction; the next look, at once, goes on behind them."""
UNUSED_S = 1.0
"""After this time the gate is looked at again: perhaps no child was free to use the wake-up."""

_LINE = text(f"""
    SELECT g.place, p.*
    FROM unnest(CAST(:kinds AS text[]), CAST(:keys AS text[]), CAST(:numbers AS int[]),
                CAST(:heads AS bigint[]), CAST(:priorities AS smallint[]),
                CAST(:afters AS bigint[]))
        WITH ORDINALITY AS g(kind, key, number, head, priority, after, place)
    CROSS JOIN LATERAL (
        SELECT p.id, p.priority, p.queue, p.name, p.order_key, p.limit_key, p.more_limit_keys,
            {READY} AND {runs("p.queue")} AND {is_free()} AS may_run
        FROM {PENDING} p
        WHERE p.state = '{State.PENDING}' AND p.parked_kind = g.kind AND p.parked_for = g.key
          AND (g.head IS NULL OR p.id = g.head) AND (p.priority, p.id) > (g.priority, g.after)
        ORDER BY p.priority, p.id LIMIT g.number FOR NO KEY UPDATE SKIP LOCKED) AS p
    ORDER BY g.place, p.priority, p.id
""")
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
    WHERE t.gate = ANY(CAST(:gates AS text[]))
""")
_TOUCH = text(f"""
    UPDATE {PENDING} p SET scan_at = p.scan_at, parked = p.parked
    WHERE p.id = ANY(CAST(:ids AS bigint[])) RETURNING p.id
""")
_FRONT = (-1, 0)
"""Priority and id before all others."""


def wake(
    connection: Connection,
    rooms: Mapping[Gate, Capacity],
    limits: Limits,
    most: Mapping[Gate, int] | None = None,
    *,
    careful: bool = False,
    now: datetime | None = None,
) -> list[tuple[str, int]]:
    """Wake the tasks that find room; return queue and id of each that may run now.

    The caller has locked the gates. ``most`` bounds each gate by the number of runs that ended.
    ``careful``: one whose row the database refuses to change takes nobody's place.
    """
    waits = {gate: look_in_s(gate, room, limits) for gate, room in rooms.items()}
    left = {gate: n for gate, room in rooms.items() if (n := _number(gate, room, most))}
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
            if others is not None and all(room.admits(row.id) for room in others):
                for room in others:
                    room.free -= 1
                left[gate] -= 1
                woken.append((row.queue, row.id))
                waits[gate] = min(waits[gate], UNUSED_S)
        there = Counter(gates[row.place - 1] for row in line)
        unread = {g: at for g, at in unread.items() if left[g] and there[g] == wanted[g]}
    waits |= dict.fromkeys(unread, SHORTEST_LOOK_S)
    values = {"ids": array(ids), "gates": text_array(waits), "waits": list(waits.values())}
    connection.execute(_GO_ON, {**values, **_columns(waits), "now": now})
    return woken


def _changeable(connection: Connection, line: Sequence[Any], now: datetime | None) -> set[int]:
    """Return the tasks whose rows the database lets us change."""

    def touch(ids: Sequence[int]) -> list[int]:
        return list(connection.execute(_TOUCH, {"ids": array(ids)}).scalars())

    parts = row_by_row(connection, [row.id for row in line], touch, "waking of tasks", now=now)
    return {task_id for part in parts for task_id in part}


def _read(
    connection: Connection,
    wanted: Mapping[Gate, int],
    rooms: Mapping[Gate, Capacity],
    after: Mapping[Gate, tuple[int, int]],
    now: datetime | None,
) -> Sequence[Any]:
    """Read the lines of gates behind ``after``; rows that somebody locks are left out."""
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
    connection: Connection,
    line: Sequence[Any],
    gates: Sequence[Gate],
    limits: Limits,
    now: datetime | None,
) -> dict[int, list[Capacity]]:
    """Return the other gates of the tasks that may run, as they stand."""
    others = {
        row.id: [
            gate
            for gate in limits.gates_of(
                row.queue, row.name, row.order_key, row.limit_key, row.more_limit_keys
            )
            if gate != gates[row.place - 1]
        ]
        for row in line
        if row.may_run
    }
    rooms = rooms_of(connection, {g for some in others.values() for g in some}, limits, now=now)
    return {task_id: [rooms[gate] for gate in some] for task_id, some in others.items()}


def _number(gate: Gate, room: Capacity, most: Mapping[Gate, int] | None) -> int:
    wanted = MOST_WOKEN if most is None else most.get(gate, 0)
    return int(min(room.free, wanted, MOST_WOKEN))
