"""Changes of waiting tasks: date, priority, queue, hold and payload; wakes the next in line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.flow_control.limits import WaitingKind
from tasks_app.domain.operations import NO_AUTHOR, Amendment, Author, BulkAction
from tasks_app.domain.tasks.records import text_array
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import Event, Pool, State
from tasks_app.pool.fragments.conditions import HELD_DUE, UNPARKED, is_held, is_put_off, judged_anew
from tasks_app.pool.fragments.transition_log import log_operator_action
from tasks_app.pool.tables import ALL, ERROR, NOW, PENDING, Clock, admits_by_id

_AT = f"greatest({NOW}, coalesce(CAST(:at AS timestamptz), {NOW} + CAST(:delay AS interval)))"
_LOOKED_AT = f"scan_at = greatest({NOW}, p.due_at), {UNPARKED}"
_GIVEN_BACK = f"greatest({NOW}, p.held_due_at)"
# A rescheduled task stays held; the due_at that holds it may depend on its date.
_RESCHEDULE = f"""
    held_due_at = CASE WHEN {is_put_off()} THEN {_AT} END, {UNPARKED},
    due_at = CASE WHEN {is_put_off()} THEN p.due_at ELSE {_AT} END,
    scan_at = CASE WHEN {is_put_off()} THEN p.scan_at ELSE {_AT} END"""
_HAS_NO_NEEDS = "p.waits_for IS NULL"  # otherwise it waits for other steps of its flow
# A step that is held, or released, keeps waiting for its needs.
_HOLD = f"""
    held_due_at = CASE WHEN {_HAS_NO_NEEDS} THEN p.due_at ELSE p.held_due_at END,
    due_at = {HELD_DUE}, scan_at = {HELD_DUE}, waits_for = -p.waits_for, {UNPARKED}"""
_RELEASE = f"""
    due_at = CASE WHEN {_HAS_NO_NEEDS} THEN {_GIVEN_BACK} ELSE p.due_at END,
    scan_at = CASE WHEN {_HAS_NO_NEEDS} THEN {_GIVEN_BACK} ELSE p.scan_at END,
    held_due_at = CASE WHEN {_HAS_NO_NEEDS} THEN NULL ELSE p.held_due_at END,
    waits_for = -p.waits_for, {UNPARKED}"""
# what each action sets, and of which tasks
_SETS = {
    BulkAction.RUN_NOW: (
        f"due_at = {NOW}, scan_at = {NOW}, held_due_at = NULL, {UNPARKED}",
        f"p.due_at > {NOW} AND {_HAS_NO_NEEDS}",
    ),
    BulkAction.RESCHEDULE: (_RESCHEDULE, "true"),
    BulkAction.REPRIORITISE: (
        f"priority = CAST(:priority AS smallint), scan_at = greatest({NOW}, p.scan_at)",
        "p.priority <> :priority",
    ),
    BulkAction.MOVE: (f"queue = :queue, {_LOOKED_AT}", "p.queue <> :queue"),
    BulkAction.HOLD: (_HOLD, f"NOT {is_held()}"),
    BulkAction.RELEASE: (_RELEASE, is_held()),
    BulkAction.ENABLE: (f"enabled = true, {_LOOKED_AT}", "NOT p.enabled"),
    BulkAction.DISABLE: (f"enabled = false, {_LOOKED_AT}", "p.enabled"),
}
_LEAVE_THEIR_PLACE = {BulkAction.HOLD, BulkAction.RESCHEDULE, BulkAction.DISABLE}


_AMEND = {
    action: text(f"""
        UPDATE {PENDING} p SET {sets}, changed_at = {NOW}
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)} AND {which}
        RETURNING p.id, p.order_key""")
    for action, (sets, which) in _SETS.items()
}
_START = f"greatest({NOW}, CAST(:start AS timestamptz))"


def _spread(takes_a_place: str, which: str, due_at: str) -> TextClause:
    """Return the statement that makes ``which`` tasks due one by one, if each takes a place."""
    return text(f"""
    WITH place AS MATERIALIZED (
        SELECT p.id, {takes_a_place} AS taken, {_START} + CAST(:gap AS interval) * (
            row_number() OVER (PARTITION BY {takes_a_place} ORDER BY p.id) - 1) AS at
        FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)} AND {which})
    UPDATE {PENDING} p SET due_at = {due_at}, scan_at = {due_at}, {UNPARKED},
        held_due_at = CASE WHEN {_HAS_NO_NEEDS} THEN NULL ELSE p.held_due_at END,
        waits_for = -p.waits_for, changed_at = {NOW}
    FROM place WHERE p.id = place.id AND {admits_by_id(Event.CLAIM)} AND {which}
    RETURNING p.id, CASE WHEN place.taken THEN place.at + CAST(:gap AS interval) END AS next_at""")


_SPREAD = {
    # Never later than a task was due anyway; a due task takes no place in the series.
    BulkAction.RUN_NOW: _spread(
        "true", f"p.due_at > {NOW} AND {_HAS_NO_NEEDS}", "least(p.due_at, place.at)"
    ),
    # Never earlier than its own date; a task that is due later takes no place in the series.
    BulkAction.RELEASE: _spread(
        f"(p.held_due_at <= {_START} AND {_HAS_NO_NEEDS})",
        is_held(),
        f"""CASE WHEN place.taken THEN place.at WHEN {_HAS_NO_NEEDS} THEN p.held_due_at
            ELSE p.due_at END""",
    ),
}
NO_AMENDMENT = Amendment()
_LOCK = text(f"""
    SELECT p.id FROM {PENDING} p WHERE p.id = :id AND {admits_by_id(Event.CLAIM)}
    FOR NO KEY UPDATE""")
_STATE = text(f"SELECT state FROM {ALL} WHERE id = :id")


def amend(
    connection: Connection,
    action: BulkAction,
    ids: Sequence[int],
    change: Amendment = NO_AMENDMENT,
    *,
    by: Author = NO_AUTHOR,
    now: Clock = None,
) -> list[int]:
    """Change tasks; return the ids of those that were changed. Waits for their rows."""
    # A caller with many ids has locked them, in the order of the ids.
    values: dict[str, Any] = {"at": change.at, "delay": change.delay}
    values |= {"queue": change.to_queue, "priority": change.to_priority}
    values |= {"ids": sorted(map(int, ids)), "now": now}
    changed = connection.execute(_AMEND[action], values).all()
    if action in _LEAVE_THEIR_PLACE:
        wake_next_in_line(connection, {row.order_key for row in changed if row.order_key}, now=now)
    done = sorted(row.id for row in changed)
    log_operator_action(connection, action, done, by, detail=change.place, now=now)
    return done


def spread(
    connection: Connection,
    action: BulkAction,
    ids: Sequence[int],
    gap: timedelta,
    start: datetime | None,
    *,
    by: Author = NO_AUTHOR,
    now: Clock = None,
) -> tuple[list[int], datetime | None]:
    """Make tasks due one after the other, ``gap`` apart, the first at ``start`` or now."""
    # Return the ids of those that were changed, and the next place; None: none took a place. The
    # caller has locked them.
    values = {"ids": sorted(map(int, ids)), "gap": gap, "start": start, "now": now}
    changed = connection.execute(_SPREAD[action], values).all()
    log_operator_action(connection, action, [row.id for row in changed], by, now=now)
    places = [row.next_at for row in changed if row.next_at is not None]
    return sorted(row.id for row in changed), max(places, default=None)


def lock_waiting(connection: Connection, task_id: int) -> bool:
    """Lock a waiting task until the transaction ends; False: it is not waiting."""
    return connection.execute(_LOCK, {"id": task_id}).first() is not None


def state_of(connection: Connection, task_id: int) -> State | None:
    """Return the state of a task in any pool; None: no such task."""
    state = connection.execute(_STATE, {"id": task_id}).scalar()
    return None if state is None else State(state)


_REPLACE_PAYLOAD = text(f"""
    UPDATE {PENDING} SET payload = CAST(:payload AS jsonb)
    WHERE id = :task_id AND attempt = :attempt AND lease_token = :token
      AND state = '{State.RUNNING}'
    RETURNING id""")
# the names of locks that a handler made are of the payload before
_OF_PRODUCER = "locks = CASE WHEN NOT jsonb_exists(t.locks, 'handler') THEN t.locks END"
_CHANGE_PAYLOAD = {
    pool: text(f"""
        UPDATE {table} t SET payload = CAST(:payload AS jsonb), changed_at = statement_timestamp(),
            {_OF_PRODUCER}{more}
        WHERE t.id = :id AND t.state = '{state}' RETURNING t.id""")
    for pool, table, state, more in (
        (Pool.PENDING, PENDING, State.PENDING, f", {judged_anew('t')}"),
        (Pool.ERROR, ERROR, State.FAILED, ""),
    )
}


def replace_payload(connection: Connection, fence: Fence, payload: str) -> bool:
    """Replace the payload, JSON text; False: the fence is lost, and nothing was written."""
    values = {**fence._asdict(), "payload": payload}
    return connection.execute(_REPLACE_PAYLOAD, values).first() is not None


def change_payload(
    connection: Connection, pool: Pool, task_id: int, payload: str, *, by: Author = NO_AUTHOR
) -> bool:
    """Change the payload, JSON text, of a waiting or failed task; False: no such task."""
    values = {"id": task_id, "payload": payload}
    done = connection.execute(_CHANGE_PAYLOAD[pool], values).first() is not None
    log_operator_action(connection, BulkAction.EDIT, [task_id] if done else [], by, pool=pool)
    return done


# No gate is locked: the caller's transaction may stay open, and claims would wait for it.
_NEXT = text(f"""
    WITH next AS MATERIALIZED (
        SELECT n.id FROM unnest(CAST(:keys AS text[])) AS k(key)
        CROSS JOIN LATERAL (
            SELECT p.id FROM {PENDING} p
            WHERE p.order_key = k.key AND p.state = '{State.PENDING}'
              AND p.parked_kind = '{WaitingKind.ORDER}'
            ORDER BY p.id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS n)
    UPDATE {PENDING} p SET scan_at = greatest({NOW}, p.due_at), {UNPARKED}
    WHERE p.id = ANY(ARRAY(SELECT id FROM next))""")


def wake_next_in_line(connection: Connection, keys: Collection[str], *, now: Clock = None) -> None:
    """Unpark the first task that waits for each order key."""
    if keys:
        connection.execute(_NEXT, {"keys": text_array(keys), "now": now})
