"""Requeue: an operator returns a task from a terminal pool. Same id, same idempotency key."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.errors import UniqueKeyTakenError
from tasks_app.domain.operations import NOBODY, Author
from tasks_app.domain.tasks.states import Event, Pool, State, pool_of
from tasks_app.pool.fragments.transition_log import log_operator_action
from tasks_app.pool.tables import (
    ALL,
    CARRIED,
    COMPLETED,
    ERROR,
    GROUP,
    NOW,
    PENDING,
    PROGRESS,
    Clock,
    admits,
    quoted,
)
from tasks_app.pool.task_groups import GOOD


class Requeued(StrEnum):
    REQUEUED = "requeued"
    STILL_PENDING = "still pending"
    NOT_FOUND = "not found"


@dataclass(frozen=True, slots=True)
class _Source:
    find: TextClause
    insert: TextClause
    delete: TextClause


_RESET = {
    "failures": "0",
    "crashes": "0",
    "retry_level": "0",
    "due_at": NOW,
    "owner": "NULL",
    "started_at": "NULL",
    "cancel_requested_at": "NULL",
    "enabled": "true",
    # the operator's decision counts more than a past date
    "expires_at": f"CASE WHEN t.expires_at > {NOW} THEN t.expires_at END",
}
_COLUMNS = ", ".join(CARRIED)
_SELECTED = ", ".join(_RESET.get(c, f"t.{c}") for c in CARRIED)


def _source(pool: str) -> _Source:
    return _Source(
        find=text(f"""
            SELECT t.batch_id, t.state FROM {pool} t
            WHERE t.id = :id AND {admits(Event.REQUEUE, "t")} FOR UPDATE"""),
        insert=text(f"""
            INSERT INTO {PENDING} ({_COLUMNS}, state, scan_at, changed_at)
            SELECT {_SELECTED}, '{State.PENDING}', {NOW}, {NOW} FROM {pool} t WHERE t.id = :id
            ON CONFLICT (name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING RETURNING id"""),
        delete=text(f"DELETE FROM {pool} t WHERE t.id = :id RETURNING t.name, t.unique_key"),
    )


_SOURCES = (_source(ERROR), _source(COMPLETED))
_TAKE_BACK = text(f"""
    UPDATE {GROUP} g
    SET succeeded = g.succeeded - CASE WHEN :state IN ({quoted(*GOOD)}) THEN 1 ELSE 0 END,
        failed = g.failed - CASE WHEN :state IN ({quoted(*GOOD)}) THEN 0 ELSE 1 END
    WHERE g.id = :id AND g.outcome IS NULL""")
_FORGET = text(f"DELETE FROM {PROGRESS} WHERE task_id = :id")
_STATE = text(f"SELECT state FROM {ALL} WHERE id = :id")
_HOLDER = text(f"""
    SELECT p.name, p.unique_key, p.id FROM {PENDING} p
    JOIN (SELECT name, unique_key FROM {ERROR} WHERE id = :id
          UNION ALL SELECT name, unique_key FROM {COMPLETED} WHERE id = :id) t
      ON p.name = t.name AND p.unique_key = t.unique_key""")


def requeue(
    connection: Connection, task_id: int, *, by: Author = NOBODY, now: Clock = None
) -> Requeued:
    """Move a finished task back to PENDING, due now, with its attempts and without its failures.

    After success or skip its checkpoint is deleted, otherwise it continues there. An open group
    does not count it any more; one that is over stays as it is.

    Raises:
        UniqueKeyTakenError: another pending task has its name and unique_key; nothing was written.
    """
    while True:
        for source in _SOURCES:
            found = connection.execute(source.find, {"id": task_id}).first()
            if found is not None:
                _move(connection, source, task_id, found, now)
                log_operator_action(
                    connection, Event.REQUEUE, [task_id], by, origin=State(found.state), now=now
                )
                return Requeued.REQUEUED
        state = connection.execute(_STATE, {"id": task_id}).scalar()
        if state is None:
            return Requeued.NOT_FOUND
        if pool_of(State(state)) is Pool.PENDING:
            return Requeued.STILL_PENDING
        # Otherwise it ended while the pools were read, one after the other.


def _move(connection: Connection, source: _Source, task_id: int, found: Any, now: Clock) -> None:
    values = {"id": task_id, "now": now}
    while connection.execute(source.insert, values).first() is None:
        holder = connection.execute(_HOLDER, {"id": task_id}).first()
        if holder is not None:  # otherwise it has just ended, and the key is free
            raise UniqueKeyTakenError(holder.name, holder.unique_key, holder.id)
    connection.execute(source.delete, {"id": task_id})
    if found.state in GOOD:
        connection.execute(_FORGET, {"id": task_id})
    if found.batch_id is not None:
        connection.execute(_TAKE_BACK, {"id": found.batch_id, "state": found.state})
