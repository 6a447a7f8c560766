"""Wakes the tasks that are parked for locks, first come, first served."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import Waiting, admit
from tasks_app.domain.flow_control.limits import Gate, GateKind
from tasks_app.domain.locks import LockRoom
from tasks_app.domain.tasks.records import text_array
from tasks_app.domain.tasks.states import State
from tasks_app.pool.flow_control.waiting_list import LOOK_AGAIN_S, SHORTEST_LOOK_S, UNUSED_S
from tasks_app.pool.fragments.conditions import UNPARKED, is_free, queue_runs
from tasks_app.pool.fragments.move_rows import array
from tasks_app.pool.locks.declared import FRONT, gates_of_locks, lock_rooms
from tasks_app.pool.locks.holders import DEAD
from tasks_app.pool.tables import GATE, LOCK_HOLDER, LOCK_PART, NOW, PENDING, READY, Clock

_PARKED = f"p.state = '{State.PENDING}' AND p.parked_kind = '{GateKind.LOCK}'"
_FRONT = text(f"""
    SELECT p.id, p.queue, p.locks, p.scan_at <= {NOW} AS is_awake,
        {READY} AND {queue_runs("p.queue")} AND {is_free()} AS may_run
    FROM {PENDING} p
    WHERE p.id = ANY(ARRAY(
        SELECT l.task_id FROM unnest(CAST(:resources AS text[])) AS w(resource)
        CROSS JOIN LATERAL (
            SELECT h.task_id FROM {LOCK_PART} t JOIN {LOCK_HOLDER} h ON h.id = t.holder_id
            WHERE t.resource = w.resource AND h.fence IS NULL AND NOT {DEAD}
            ORDER BY t.holder_id LIMIT {FRONT}) AS l))
      AND {_PARKED}""")
# Who is woken keeps its place until it is claimed: nobody behind it may overtake it.
_GO_ON = text(f"""
    WITH free AS MATERIALIZED (
        SELECT p.id FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[]) || CAST(:back AS bigint[])) AND {_PARKED}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED),
    woken AS (
        UPDATE {PENDING} p SET scan_at = greatest({NOW}, p.due_at)
        WHERE p.id = ANY(ARRAY(SELECT id FROM free)) AND p.id = ANY(CAST(:ids AS bigint[]))),
    back AS (
        UPDATE {PENDING} p SET scan_at = greatest({NOW}, p.due_at), {UNPARKED}
        WHERE p.id = ANY(ARRAY(SELECT id FROM free)) AND p.id = ANY(CAST(:back AS bigint[])))
    UPDATE {GATE} t SET look_at = CASE WHEN EXISTS (
        SELECT FROM {LOCK_PART} p JOIN {LOCK_HOLDER} h ON h.id = p.holder_id
        WHERE p.resource = g.resource AND h.fence IS NULL AND h.task_id IS NOT NULL AND NOT {DEAD})
        THEN {NOW} + make_interval(secs => g.wait) END
    FROM unnest(CAST(:gates AS text[]), CAST(:resources AS text[]), CAST(:waits AS float8[]))
        AS g(gate, resource, wait)
    WHERE t.gate = g.gate""")


def wake_lock_lines(
    connection: Connection, gates: Sequence[Gate], *, now: Clock = None
) -> list[tuple[str, int]]:
    """Wake who may have its locks now; return queue and id of each that was not awake."""
    # The caller has locked the gates. Who stands in front and may not run now goes back to its
    # queue, and is judged anew when it can.
    resources = text_array(gate.key for gate in gates)
    rows = connection.execute(_FRONT, {"resources": resources, "now": now}).all()
    found = [(row, Waiting(row.id, gates_of_locks(row.locks), row.locks)) for row in rows]
    rooms = lock_rooms(connection, [task for _, task in found], now=now)
    places = {one.task_id: one.place for room in rooms.values() for one in room.line}
    back = {row.id for row in rows if not row.may_run}
    for room in rooms.values():
        for task_id in back:
            room.leave(task_id)
    in_line = [task for row, task in found if row.may_run]
    admission = admit(sorted(in_line, key=lambda task: places.get(task.task_id, 0)), rooms)
    admitted = set(admission.ids)
    waits = {gate: _look_in_s(room, admitted, back) for gate, room in rooms.items()}
    woken = [(row.queue, row.id) for row in rows if row.id in admitted and not row.is_awake]
    values = {
        "ids": array(task_id for _, task_id in woken),
        "back": array(back),
        "gates": text_array(gates),
        "resources": resources,
        "waits": [waits.get(gate, LOOK_AGAIN_S) for gate in gates],
        "now": now,
    }
    connection.execute(_GO_ON, values)
    return woken


def _look_in_s(room: LockRoom, admitted: set[int], back: set[int]) -> float:
    wanted = set(room.wanted)
    if wanted & back or (room.cut and wanted <= admitted):
        return SHORTEST_LOOK_S
    return UNUSED_S if wanted & admitted else LOOK_AGAIN_S
