"""Requeue: an operator returns a task from a terminal pool. Same id, same idempotency key."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sqlalchemy import Connection, text

from tasks_app.domain.errors import UniqueKeyTakenError
from tasks_app.domain.operations import NO_AUTHOR, Author
from tasks_app.domain.tasks.states import Event, Pool, State, pool_of
from tasks_app.pool.fragments.transition_log import log_operator_action
from tasks_app.pool.tables import (
    ALL,
    CARRIED,
    COMPLETED,
    ERROR,
    EVENT_WAIT,
    NOW,
    PENDING,
    PROGRESS,
    Clock,
    admits,
)
from tasks_app.pool.task_groups import GOOD, LOCKED, check_key_is_free, lock_groups, take_back


class Requeued(StrEnum):
    REQUEUED = "requeued"
    STILL_PENDING = "still pending"
    NOT_FOUND = "not found"


_RESET = {
    **dict.fromkeys(("failures", "crashes", "retry_level"), "0"),
    **dict.fromkeys(("owner", "started_at", "cancel_requested_at"), "NULL"),
    "due_at": NOW,
    "enabled": "true",
    # the operator's decision counts more than a past date
    "expires_at": f"CASE WHEN t.expires_at > {NOW} THEN t.expires_at END",
}
_SELECTED = ", ".join(_RESET.get(c, f"t.{c}") for c in CARRIED)
_FIND = {
    pool: text(f"""
    WITH {lock_groups(f"SELECT m.batch_id FROM {pool} m WHERE m.id = :id")}
    SELECT t.batch_id, t.state FROM {pool} t
    WHERE t.id = :id AND {LOCKED} AND {admits(Event.REQUEUE, "t")} FOR UPDATE""")
    for pool in (ERROR, COMPLETED)
}
_INSERT = {
    pool: text(f"""
    INSERT INTO {PENDING} ({", ".join(CARRIED)}, state, scan_at, changed_at)
    SELECT {_SELECTED}, '{State.PENDING}', {NOW}, {NOW} FROM {pool} t
    WHERE t.id = ANY(CAST(:ids AS bigint[])) ORDER BY t.id
    ON CONFLICT (name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING RETURNING id""")
    for pool in (ERROR, COMPLETED)
}
_BEGIN_TIME_OUTS_ANEW = text(f"""
    UPDATE {EVENT_WAIT} SET until = NULL, not_before = NULL
    WHERE task_id = ANY(CAST(:ids AS bigint[])) AND until IS NOT NULL""")
_STATE = text(f"SELECT state FROM {ALL} WHERE id = :id")
_HOLDER = text(f"""
    SELECT p.name, p.unique_key, p.id FROM {PENDING} p
    JOIN (SELECT name, unique_key FROM {ERROR} WHERE id = :id
          UNION ALL SELECT name, unique_key FROM {COMPLETED} WHERE id = :id) t
      ON p.name = t.name AND p.unique_key = t.unique_key""")


def requeue(
    connection: Connection, task_id: int, *, by: Author = NO_AUTHOR, now: Clock = None
) -> Requeued:
    """Move a finished task back to PENDING, due now, with its attempts and without its failures.

    After success or skip its checkpoint is deleted, otherwise it continues there. Its group does
    not count it any more, and is open again if it had failed; one that succeeded stays as it is.

    Raises:
        UniqueKeyTakenError: another pending task has its name and unique_key, or another open flow
            the key of its flow; nothing was written.
    """
    while True:
        for pool, find in _FIND.items():
            found = connection.execute(find, {"id": task_id}).first()
            if found is not None:
                was = State(found.state)
                if found.batch_id is not None:
                    check_key_is_free(connection, found.batch_id)
                move_back(connection, pool, {task_id: was}, now=now)
                if found.batch_id is not None:
                    take_back(connection, found.batch_id, task_id, was)
                log_operator_action(connection, Event.REQUEUE, [task_id], by, origin=was, now=now)
                return Requeued.REQUEUED
        state = connection.execute(_STATE, {"id": task_id}).scalar()
        if state is None:
            return Requeued.NOT_FOUND
        if pool_of(State(state)) is Pool.PENDING:
            return Requeued.STILL_PENDING
        # Otherwise it ended while the pools were read, one after the other.


def move_back(
    connection: Connection, pool: str, states: Mapping[int, State], *, now: Clock = None
) -> None:
    """Move tasks that ended in these states, and whose rows are locked, back to PENDING.

    Raises:
        UniqueKeyTakenError: another pending task has the name and unique_key of one.
    """
    left = sorted(states)
    while left:
        moved = set(connection.execute(_INSERT[pool], {"ids": left, "now": now}).scalars())
        left = [task_id for task_id in left if task_id not in moved]
        holder = left and connection.execute(_HOLDER, {"id": left[0]}).first()
        if holder:  # otherwise it has just ended, and the key is free
            raise UniqueKeyTakenError(holder.name, holder.unique_key, holder.id)
    _delete(connection, pool, "id", sorted(states))
    _delete(connection, PROGRESS, "task_id", [i for i, state in states.items() if state in GOOD])
    connection.execute(_BEGIN_TIME_OUTS_ANEW, {"ids": sorted(states)})


def _delete(connection: Connection, table: str, column: str, ids: list[int]) -> None:
    gone = f"DELETE FROM {table} t WHERE t.{column} = ANY(CAST(:ids AS bigint[]))"
    if ids:
        connection.execute(text(gone), {"ids": ids})
