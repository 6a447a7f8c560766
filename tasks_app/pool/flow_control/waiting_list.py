"""Tasks that found a gate shut stand aside, out of the scan's sight, until they are woken.

A row is written when it is held and when it is woken, however long it waits and however many wait.
The child that holds rows looks at the gate again after its COMMIT, and the child that made room
looks after its own: one of the two sees the other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import Capacity
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit, Limits
from tasks_app.domain.flow_control.waiting_reason import WaitingKind
from tasks_app.domain.tasks.states import Event
from tasks_app.domain.text_array import text_array
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.flow_control.capacity import COLUMNS
from tasks_app.pool.fragments.fences import array
from tasks_app.pool.fragments.parked import parked_as
from tasks_app.pool.tables import GATE, NOW, PENDING, admits_by_id

ASIDE = "interval '1 day'"
"""How long a held row stands aside if it is never woken."""
LOOK_AGAIN_S = 30.0
"""A gate is looked at after this time even if no child reported room: one may die between the end
of a run and its report."""
SHORTEST_LOOK_S = 0.05
OLDER_RUN_LOOK_S = 1.0
"""The same while a run may be older than the limit: it passed no gate, so its end reports no
room."""
UNCOMMITTED = timedelta(seconds=10)
"""How long after a limit was written its transaction may still be open."""

_WAITED_FOR = text(f"""
    INSERT INTO {GATE} AS t (gate, look_at)
    SELECT g.gate, {NOW} + make_interval(secs => g.wait)
    FROM unnest(CAST(:gates AS text[]), CAST(:waits AS float8[])) AS g(gate, wait)
    ORDER BY g.gate COLLATE "C"
    ON CONFLICT (gate) DO UPDATE SET look_at = least(t.look_at, EXCLUDED.look_at)
""")
_HELD_BY = """CASE WHEN p.more_limit_keys IS NULL THEN p.limit_key ELSE
            (CAST(:held_by AS text[]))[array_position(CAST(:ids AS bigint[]), p.id)] END"""
_PARK = {
    kind: text(f"""
    WITH aside AS MATERIALIZED (
        SELECT p.id FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
          AND p.due_at <= {NOW}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {PENDING} p SET scan_at = {NOW} + {ASIDE},
        {parked_as(WaitingKind(kind), _HELD_BY if kind is GateKind.KEY else f"p.{column}")}
    WHERE p.id = ANY(ARRAY(SELECT id FROM aside))
    """)
    for kind, column in COLUMNS.items()
}
_WAITING = text(f"""
    SELECT t.gate FROM {GATE} t
    WHERE t.gate = ANY(CAST(:gates AS text[])) AND t.look_at IS NOT NULL
""")
_ANY_WAITS = text(f"SELECT EXISTS (SELECT FROM {GATE} t WHERE t.look_at IS NOT NULL)")
_OVERDUE = text(f"""
    SELECT t.gate FROM {GATE} t WHERE t.look_at <= {NOW} ORDER BY t.look_at LIMIT :most
""")
_NEXT_LOOK = text(f"""
    SELECT CAST(EXTRACT(EPOCH FROM min(t.look_at) - {NOW}) AS float) FROM {GATE} t
    WHERE t.look_at IS NOT NULL
""")


def hold(
    connection: Connection,
    held: Mapping[Gate, Sequence[int]],
    rooms: Mapping[Gate, Capacity],
    limits: Limits,
    *,
    now: datetime | None = None,
) -> None:
    """Park tasks that their gate did not admit. Locked rows are left as they are."""
    if not held:
        return
    values = {
        "gates": text_array(held),
        "waits": [look_in_s(gate, rooms[gate], limits) for gate in held],
    }
    connection.execute(_WAITED_FOR, {**values, "now": now})
    for kind in _PARK:
        of_kind = {i: g.key for g, some in held.items() if g.kind is kind for i in some}
        _park(connection, kind, of_kind, now)


def _park(
    connection: Connection, kind: GateKind, keys: Mapping[int, str], now: datetime | None
) -> None:
    def park(ids: Sequence[int]) -> None:
        held_by = {"held_by": text_array(keys[i] for i in ids)} if kind is GateKind.KEY else {}
        connection.execute(_PARK[kind], {"ids": array(ids), **held_by, "now": now})

    row_by_row(connection, keys, park, "holding of tasks", now=now)


def waited_for(connection: Connection, gates: Collection[Gate]) -> list[Gate]:
    """Return the gates that hold somebody. Only a read; one probe while no gate holds anybody."""
    if not connection.execute(_ANY_WAITS).scalar():
        return []
    rows = connection.execute(_WAITING, {"gates": text_array(gates)}).scalars()
    return [Gate.parse(gate) for gate in rows]


def overdue(connection: Connection, most: int, *, now: datetime | None = None) -> list[Gate]:
    """Return gates whose next look is due. Only a read."""
    rows = connection.execute(_OVERDUE, {"most": most, "now": now}).scalars()
    return [Gate.parse(gate) for gate in rows]


def next_look_in_s(connection: Connection, *, now: datetime | None = None) -> float | None:
    """Return the seconds until the next look at a gate; None: nobody is held."""
    seconds: float | None = connection.execute(_NEXT_LOOK, {"now": now}).scalar()
    return seconds


def look_in_s(gate: Gate, room: Capacity, limits: Limits) -> float:
    """Return the seconds until bucket or head may admit somebody, at most ``LOOK_AGAIN_S``."""
    limit = limits.of(gate)
    if gate.kind is not GateKind.ORDER and limit is None:
        return 0.0  # it was taken away, and some wait still
    if limit is None or limit.burst is None or math.isinf(room.tokens):
        wait_s = min(LOOK_AGAIN_S, room.leaves_s)
    else:
        left = room.tokens - min(room.free, math.floor(room.tokens))
        wait_s = (max(1.0, limit.burst // 2) - left) / limit.per_second
    if limit is not None and _has_older_run(limit, room):
        wait_s = min(wait_s, OLDER_RUN_LOOK_S)
    return max(SHORTEST_LOOK_S, wait_s)


def _has_older_run(limit: Limit, room: Capacity) -> bool:
    if limit.changed_at is None or room.since is None:
        return False
    return room.since < limit.changed_at + UNCOMMITTED
