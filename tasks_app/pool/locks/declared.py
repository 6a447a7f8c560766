"""Locks that tasks declare: the lines before resources, and who enters them with a claim.

A task that is parked for a lock stands in the line with the others who wait. Its place counts as
long as it is parked, so nothing has to be removed when it leaves. A claim takes the place away and
makes the run a holder, in its own transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import Waiting
from tasks_app.domain.flow_control.limits import Gate, GateKind
from tasks_app.domain.locks import InLine, LockMode, LockPart, LockRoom, StoredLocks, declared_parts
from tasks_app.domain.tasks.records import text_array
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import State
from tasks_app.pool.locks.acquire import REMOVE_DEAD
from tasks_app.pool.locks.holders import DEAD, OVER
from tasks_app.pool.tables import (
    LOCK,
    LOCK_FENCE,
    LOCK_HOLDER,
    LOCK_PART,
    LOCK_WAIT,
    NOW,
    PENDING,
    Clock,
)

NOBODY: Mapping[tuple[int, str], str | None] = {}
FRONT = 20  # waiters of a line that are read
LASTS = "interval '100 years'"  # a run's declared locks end with it, and have no lease of their own
_INSERT = text(f"""
    INSERT INTO {LOCK} (resource)
    SELECT w.resource FROM unnest(CAST(:resources AS text[])) AS w(resource)
    WHERE NOT EXISTS (SELECT FROM {LOCK} r WHERE r.resource = w.resource)
    ORDER BY w.resource COLLATE "C" ON CONFLICT DO NOTHING""")
_UNNAMED = text(f"""
    SELECT p.id, p.name, p.payload::text AS payload, CAST(p.xmin AS text) AS version
    FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND p.name = ANY(CAST(:names AS text[]))
      AND p.state = '{State.PENDING}' AND coalesce(p.locks = '{{"handler": true}}', true)""")
_NAME = text(f"""
    WITH named AS MATERIALIZED (
        SELECT p.id, w.locks
        FROM unnest(CAST(:ids AS bigint[]), CAST(:locks AS jsonb[]), CAST(:versions AS text[]))
            AS w(id, locks, version)
        JOIN {PENDING} p ON p.id = w.id AND CAST(p.xmin AS text) = w.version
        ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED)
    UPDATE {PENDING} p SET locks = n.locks FROM named n WHERE p.id = n.id""")
_LOCK = text(f"""
    SELECT r.resource FROM {LOCK} r WHERE r.resource = ANY(CAST(:resources AS text[]))
    ORDER BY r.resource FOR NO KEY UPDATE OF r""")
_SAME = text(f"""
    SELECT p.id FROM unnest(CAST(:ids AS bigint[]), CAST(:locks AS jsonb[])) AS w(id, locks)
    JOIN {PENDING} p ON p.id = w.id AND p.locks = w.locks
    ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED""")
_IN_LINE = "h.id, p.mode, h.who, h.task_id, h.fence IS NOT NULL AS held"
_LINES = text(f"""
    SELECT w.resource, r.most, l.*
    FROM unnest(CAST(:resources AS text[])) AS w(resource)
    LEFT JOIN {LOCK} r ON r.resource = w.resource
    LEFT JOIN LATERAL (
        SELECT {_IN_LINE}, {DEAD} AS dead
        FROM {LOCK_PART} p JOIN {LOCK_HOLDER} h ON h.id = p.holder_id
        WHERE p.resource = w.resource AND h.fence IS NOT NULL
        UNION ALL
        (SELECT {_IN_LINE}, false
         FROM {LOCK_PART} p JOIN {LOCK_HOLDER} h ON h.id = p.holder_id
         WHERE p.resource = w.resource AND h.fence IS NULL AND NOT {DEAD}
         ORDER BY p.holder_id LIMIT {FRONT})) AS l ON true
    ORDER BY l.held DESC, l.id""")
_FREE_ENDED = text(f"""
    WITH ended AS MATERIALIZED (
        SELECT h.id FROM {LOCK_HOLDER} h
        WHERE h.id IN (SELECT p.holder_id FROM {LOCK_PART} p
                       WHERE p.resource = ANY(CAST(:resources AS text[])))
          AND h.fence IS NOT NULL AND {OVER}
        FOR UPDATE OF h SKIP LOCKED)
    DELETE FROM {LOCK_HOLDER} h USING ended e WHERE h.id = e.id""")
_OF_TASKS = """unnest(CAST(:tasks AS bigint[]), CAST(:resources AS text[]), CAST(:modes AS text[]),
            CAST(:most AS integer[]), CAST(:blocked_by AS text[]))
            AS u(task_id, resource, mode, most, blocked_by)"""
# Another process may have parked a task at the same time: it keeps the place that it has.
_ENTER_LINES = text(f"""
    WITH parked AS MATERIALIZED (
        SELECT t.id, t.name, t.attempt, t.parked_for FROM {PENDING} t
        WHERE t.id = ANY(CAST(:ids AS bigint[])) AND t.parked_kind = '{GateKind.LOCK}'),
    place AS MATERIALIZED (
        SELECT h.id, h.task_id, h.attempt = k.attempt AND EXISTS (
            SELECT FROM {LOCK_PART} p WHERE p.holder_id = h.id AND p.resource = k.parked_for)
            AS counts
        FROM parked k JOIN {LOCK_HOLDER} h ON h.task_id = k.id AND h.fence IS NULL),
    stale AS (
        DELETE FROM {LOCK_HOLDER} h
        WHERE h.id = ANY(ARRAY(SELECT id FROM place WHERE NOT counts))),
    h AS (
        INSERT INTO {LOCK_HOLDER}
            (token, who, task_id, attempt, lease_token, asked_at, lease_until)
        SELECT gen_random_uuid(), k.name, k.id, k.attempt, gen_random_uuid(), {NOW},
            {NOW} + {LASTS}
        FROM parked k WHERE k.id <> ALL (ARRAY(SELECT task_id FROM place WHERE counts))
        ORDER BY array_position(CAST(:ids AS bigint[]), k.id)
        RETURNING id, task_id)
    INSERT INTO {LOCK_PART} (resource, holder_id, mode, most, blocked_by)
    SELECT u.resource, h.id, u.mode, u.most, u.blocked_by
    FROM h JOIN {_OF_TASKS} ON u.task_id = h.task_id""")
_GRANT = text(f"""
    WITH place AS MATERIALIZED (
        SELECT h.task_id, min(h.asked_at) AS asked_at FROM {LOCK_HOLDER} h
        WHERE h.id = ANY(CAST(:places AS bigint[])) GROUP BY h.task_id),
    waited AS (
        INSERT INTO {LOCK_WAIT}
            (resource, mode, outcome, who, task_id, blocked_by, asked_at, ended_at)
        SELECT p.resource, p.mode, 'granted', h.who, h.task_id, p.blocked_by, h.asked_at, {NOW}
        FROM {LOCK_HOLDER} h JOIN {LOCK_PART} p ON p.holder_id = h.id
        WHERE h.id = ANY(CAST(:places AS bigint[])) AND p.blocked_by IS NOT NULL),
    left_line AS (DELETE FROM {LOCK_HOLDER} h WHERE h.id = ANY(CAST(:places AS bigint[]))),
    used AS (
        UPDATE {LOCK} r SET grants = r.grants + n.number, used_at = {NOW}
        FROM (SELECT u.resource, count(*) AS number FROM {_OF_TASKS} GROUP BY u.resource) AS n
        WHERE r.resource = n.resource),
    h AS (
        INSERT INTO {LOCK_HOLDER} (token, who, task_id, attempt, lease_token, asked_at,
            granted_at, fence, lease_until)
        SELECT gen_random_uuid(), c.name, c.id, c.attempt, :token, coalesce(place.asked_at, {NOW}),
            {NOW}, nextval('{LOCK_FENCE}'), {NOW} + {LASTS}
        FROM unnest(CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:names AS text[]))
            AS c(id, attempt, name) LEFT JOIN place ON place.task_id = c.id
        RETURNING id, task_id)
    INSERT INTO {LOCK_PART} (resource, holder_id, mode, most)
    SELECT u.resource, h.id, u.mode, u.most FROM h JOIN {_OF_TASKS} ON u.task_id = h.task_id""")


def gates_of_locks(locks: StoredLocks | None) -> tuple[Gate, ...]:
    """Return the gates of a row's locks."""
    parts = () if locks is None else declared_parts(locks)
    return tuple(Gate(GateKind.LOCK, part.resource) for part in parts)


def resources_of(gates: Iterable[Gate]) -> list[str]:
    return [gate.key for gate in gates if gate.kind is GateKind.LOCK]


def unnamed_tasks(
    connection: Connection, ids: Sequence[int], names: Collection[str]
) -> Sequence[Any]:
    """Return id, name, payload and version of tasks whose handler's locks have no names yet."""
    values = {"ids": list(ids), "names": list(names)}
    return connection.execute(_UNNAMED, values).all()


def name_locks(connection: Connection, named: Sequence[tuple[int, StoredLocks, str]]) -> None:
    """Write locks into rows, unless they changed since they were read in this version."""
    ids, locks, versions = zip(*named, strict=True)
    texts = text_array(json.dumps(each) for each in locks)
    connection.execute(_NAME, {"ids": list(ids), "locks": texts, "versions": list(versions)})


def insert_declared(connection: Connection, resources: Collection[str]) -> None:
    """Insert missing control rows; COMMIT before they are locked."""
    connection.execute(_INSERT, {"resources": text_array(resources)})


def lock_declared(connection: Connection, waiting: Sequence[Waiting]) -> list[Waiting]:
    """Lock the resources of tasks; return the tasks that still want the same, and the others."""
    # Their rows are locked, too, or somebody could change what they want before they are claimed.
    locked = [task for task in waiting if task.locks is not None]
    if not locked:
        return list(waiting)
    values = {
        "ids": [task.task_id for task in locked],
        "locks": text_array(json.dumps(t.locks) for t in locked),
    }
    same = set(connection.execute(_SAME, values).scalars())
    wanted = {name for task in locked if task.task_id in same for name in resources_of(task.gates)}
    found = connection.execute(_LOCK, {"resources": text_array(sorted(wanted))}).scalars()
    there = set(found)
    return [
        task
        for task in waiting
        if task.locks is None
        or (task.task_id in same and there.issuperset(resources_of(task.gates)))
    ]


def lock_rooms(
    connection: Connection,
    waiting: Iterable[Waiting],
    *,
    takes_over: bool = False,
    now: Clock = None,
) -> dict[Gate, LockRoom]:
    """Return whom each resource that the tasks want lets pass."""
    # ``takes_over``: dead holders are removed, under the locks of ``lock_declared``; what is left
    # of them is guarded by an open transaction. Without, it is only a read, and leaves them out.
    wanted: dict[str, dict[int, LockPart]] = {}
    for task in waiting:
        for part in () if task.locks is None else declared_parts(task.locks):
            wanted.setdefault(part.resource, {})[task.task_id] = part
    if not wanted:
        return {}
    values = {"resources": text_array(wanted), "now": now}
    rows = connection.execute(_LINES, values).all()
    if takes_over and any(row.dead for row in rows):
        connection.execute(_FREE_ENDED, values)
        connection.execute(REMOVE_DEAD, {**values, "token": uuid4(), "who": "a task"})
        rows = connection.execute(_LINES, values).all()
    rooms = {name: LockRoom(name, [], parts) for name, parts in wanted.items()}
    for row in rows:
        room = rooms[row.resource]
        room.most = row.most
        if row.id is not None and (takes_over or not row.dead):
            room.line.append(InLine(row.id, LockMode(row.mode), row.who, row.task_id, row.held))
    for room in rooms.values():
        room.cut = sum(not one.held for one in room.line) >= FRONT
    return {Gate(GateKind.LOCK, name): room for name, room in rooms.items()}


def grant_declared(
    connection: Connection,
    claimed: Iterable[ClaimedTask],
    rooms: Mapping[Gate, LockRoom],
    *,
    now: Clock = None,
) -> None:
    """Make the runs holders of what their tasks want, under the locks of ``lock_declared``."""
    parts = _parts_by_task(rooms)
    runs = [task for task in claimed if task.task_id in parts]
    if not runs:
        return
    ids = {task.task_id for task in runs}
    left = (one for room in rooms.values() for one in room.left)
    values = {
        "ids": [task.task_id for task in runs],
        "attempts": [task.fence.attempt for task in runs],
        "names": [task.name for task in runs],
        "token": runs[0].fence.token,
        "places": sorted({one.place for one in left if one.task_id in ids}),
        **_of_tasks({task_id: parts[task_id] for task_id in ids}),
        "now": now,
    }
    connection.execute(_GRANT, values)


def enter_lines(
    connection: Connection,
    held: Mapping[Gate, Sequence[int]],
    rooms: Mapping[Gate, LockRoom],
    *,
    now: Clock = None,
) -> None:
    """Give parked tasks a place in the line before each resource that they want."""
    new = {i: gate for gate, ids in held.items() for i in ids if not rooms[gate].has_place(i)}
    if new:
        parts = _parts_by_task(rooms)
        blocked_by = {(i, gate.key): rooms[gate].obstacle(i) for i, gate in new.items()}
        values = _of_tasks({task_id: parts[task_id] for task_id in new}, blocked_by)
        connection.execute(_ENTER_LINES, {**values, "ids": list(new), "now": now})


def _parts_by_task(rooms: Mapping[Gate, LockRoom]) -> dict[int, list[LockPart]]:
    parts: dict[int, list[LockPart]] = {}
    for room in rooms.values():
        for task_id, part in room.wanted.items():
            parts.setdefault(task_id, []).append(part)
    return parts


def _of_tasks(
    parts: Mapping[int, Sequence[LockPart]],
    blocked_by: Mapping[tuple[int, str], str | None] = NOBODY,
) -> dict[str, Any]:
    rows = [(task_id, part) for task_id, some in parts.items() for part in some]
    return {
        "tasks": [task_id for task_id, _ in rows],
        "resources": [part.resource for _, part in rows],
        "modes": [part.mode.value for _, part in rows],
        "most": [part.most for _, part in rows],
        "blocked_by": [blocked_by.get((task_id, part.resource)) for task_id, part in rows],
    }


def free_ended(connection: Connection, resources: Sequence[str]) -> None:
    """Remove holders whose runs are over."""
    connection.execute(_FREE_ENDED, {"resources": text_array(resources), "now": None})
