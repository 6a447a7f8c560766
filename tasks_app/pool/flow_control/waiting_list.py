"""Tasks that found a gate shut stand aside, out of the scan's sight, until they are woken.

A row is written when it is held and when it is woken, however long that takes and however many
wait. Who holds rows looks once more after his COMMIT, and who made room looks after his: one of the
two sees the other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import Capacity
from tasks_app.domain.flow_control.limits import Gate, Kind, Limit, Limits
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control.capacity import COLUMNS
from tasks_app.pool.fragments.fences import array, texts
from tasks_app.pool.tables import GATE, NOW, PENDING, admits_by_id

ASIDE = "interval '1 day'"
"""How long a held row stands aside unless it is woken, as it should be."""
LOOK_AGAIN_S = 30.0
"""After so long a gate is looked at whether or not somebody said that there is room: a child may
die between the end of a run and its word."""
SHORTEST_LOOK_S = 0.05
OLDER_RUN_LOOK_S = 1.0
"""The same while a run lives that may be older than the limit: it passed no gate, and at its end
nobody says that there is room."""
UNCOMMITTED = timedelta(seconds=10)
"""For so long after a limit was written its transaction may still be open."""

_WAITED_FOR = text(f"""
    INSERT INTO {GATE} AS t (gate, look_at)
    SELECT g.gate, {NOW} + make_interval(secs => g.wait)
    FROM unnest(CAST(:gates AS text[]), CAST(:waits AS float8[])) AS g(gate, wait)
    ORDER BY g.gate COLLATE "C"
    ON CONFLICT (gate) DO UPDATE SET look_at = least(t.look_at, EXCLUDED.look_at)
""")
_REASONS = {kind: f"'{Gate(kind, '')}' || p.{column}" for kind, column in COLUMNS.items()}
_PARK = {
    kind: text(f"""
    WITH aside AS MATERIALIZED (
        SELECT p.id FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
          AND p.due_at <= {NOW}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {PENDING} p SET scan_at = {NOW} + {ASIDE}, parked = {reason}
    WHERE p.id = ANY(ARRAY(SELECT id FROM aside))
    """)
    for kind, reason in _REASONS.items()
}
_WAITING = text(f"""
    SELECT t.gate FROM {GATE} t
    WHERE t.gate = ANY(CAST(:gates AS text[])) AND t.look_at IS NOT NULL
      AND EXISTS (SELECT FROM {GATE} w WHERE w.look_at IS NOT NULL)
""")
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
    """Set those aside that their gate did not let pass. What somebody holds is left as it is."""
    if not held:
        return
    values = {
        "gates": texts(held),
        "waits": [look_in_s(gate, rooms[gate], limits) for gate in held],
    }
    connection.execute(_WAITED_FOR, {**values, "now": now})
    for kind, park in _PARK.items():
        ids = sorted(i for gate, some in held.items() if gate.kind is kind for i in some)
        if ids:
            connection.execute(park, {"ids": array(ids), "now": now})


def waited_for(connection: Connection, gates: Collection[Gate]) -> list[Gate]:
    """Return those of the gates before which somebody is held. Only a read.

    As long as nobody is held anywhere, it is one probe.
    """
    rows = connection.execute(_WAITING, {"gates": texts(gates)}).scalars()
    return [Gate.parse(gate) for gate in rows]


def overdue(connection: Connection, most: int, *, now: datetime | None = None) -> list[Gate]:
    """Return gates that are to be looked at again. Only a read."""
    rows = connection.execute(_OVERDUE, {"most": most, "now": now}).scalars()
    return [Gate.parse(gate) for gate in rows]


def next_look_in_s(connection: Connection, *, now: datetime | None = None) -> float | None:
    """Return in how many seconds a gate is to be looked at; None: nobody is held."""
    seconds: float | None = connection.execute(_NEXT_LOOK, {"now": now}).scalar()
    return seconds


def look_in_s(gate: Gate, room: Capacity, limits: Limits) -> float:
    """Return when to look again: when bucket or head let somebody pass, or else after a while."""
    limit = limits.of(gate)
    if gate.kind is not Kind.ORDER and limit is None:
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
