"""A new task meets a taken unique_key: what its policy does to it, and to the key's holder."""

from __future__ import annotations

import logging
from datetime import datetime

from tasks_app.domain.errors import UniqueKeyTakenError
from tasks_app.domain.tasks.records import TaskId, TaskRow
from tasks_app.domain.tasks.states import State
from tasks_app.domain.tasks.unique_key import CreateOutcome, KeyRule, OnConflict, Scope
from tasks_app.pool.connection.steps import Statement, Statements
from tasks_app.pool.fragments.held import is_held
from tasks_app.pool.fragments.parked import UNPARKED
from tasks_app.pool.tables import PENDING
from tasks_app.pool.tasks import unique_keys
from tasks_app.pool.tasks.insert import INSTANT

log = logging.getLogger(__name__)

_HOLDER = f"""
    SELECT id, state FROM {PENDING} WHERE name = %(name)s AND unique_key = %(unique_key)s
"""
_DUE = f"""
    coalesce(CAST(%(run_at)s AS timestamptz), {INSTANT})
    + make_interval(secs => CAST(%(delay)s AS double precision))
"""
_LATEST = f"""
    CASE WHEN p.attempt = 0
        THEN p.created_at + make_interval(secs => CAST(%(max_wait)s AS double precision))
        WHEN {is_held()} THEN p.held_due_at ELSE p.due_at END
"""
"""A task that has run once has waited long enough: what counts then is when it is due."""
_DUE_IN_TIME = f"""
    CASE WHEN CAST(%(max_wait)s AS double precision) IS NULL THEN {_DUE}
        ELSE least({_DUE}, {_LATEST}) END
"""
_CHANGES = {
    OnConflict.REPLACE_PAYLOAD: "payload = CAST(%(payload)s AS jsonb)",
    # A held one keeps waiting; it gets the new date when it is released.
    OnConflict.RESCHEDULE: f"""
        due_at = CASE WHEN {is_held()} THEN p.due_at ELSE {_DUE_IN_TIME} END,
        scan_at = CASE WHEN {is_held()} THEN p.scan_at ELSE {_DUE_IN_TIME} END,
        held_due_at = CASE WHEN {is_held()} THEN {_DUE_IN_TIME} END, {UNPARKED}""",
}
_OUTCOMES = {
    OnConflict.REPLACE_PAYLOAD: CreateOutcome.REPLACED,
    OnConflict.RESCHEDULE: CreateOutcome.RESCHEDULED,
}
_BY_KEY = "p.name = %(name)s AND p.unique_key = %(unique_key)s"
_BY_ID = "p.id = %(id)s"
_NO_RULE = KeyRule()


def met_in_the_pool(row: TaskRow, now: datetime | None) -> Statements[TaskId | None]:
    """Return the holder of a key that is a column of its row; None: it is free by now.

    Raises:
        UniqueKeyTakenError: the policy says so.
    """
    rule = row.terms.rule or _NO_RULE
    if rule.on_conflict in _CHANGES:
        for (task_id,) in (yield _change(row, rule, _BY_KEY, None, now)):
            return TaskId.held(task_id, _OUTCOMES[rule.on_conflict])
    values = {"name": row.name, "unique_key": row.unique_key}
    for task_id, state in (yield Statement(_HOLDER, values)):
        if rule.on_conflict is OnConflict.RAISE:
            raise UniqueKeyTakenError(row.name, str(row.unique_key), task_id)
        if state == State.RUNNING:
            log.warning(
                "unique_key of a new %s is held by task %s, which is RUNNING: no task was created. "
                "A handler that wants to run again raises Retry or Snooze.",
                row.name,
                task_id,
            )
        return TaskId.held(task_id)
    return None


def met_in_the_table(
    row: TaskRow, new_id: int | None, now: datetime | None
) -> Statements[TaskId | None]:
    """Return the holder of a key of the table of keys, perhaps the new task; None: ask again.

    A key of scope ``queued`` is taken while its task is PENDING. That task is locked first: either
    it starts after this transaction, or it runs already and the key is free.

    Raises:
        UniqueKeyTakenError: the policy says so.
    """
    rule = row.terms.rule or _NO_RULE
    for holder, scope, is_over in (yield unique_keys.holder(row, now)):
        if not is_over:
            changes = rule.on_conflict in _CHANGES
            if changes and (yield _change(row, rule, _BY_ID, holder, now)):
                return TaskId.held(holder, _OUTCOMES[rule.on_conflict])
            if scope != Scope.QUEUED or (not changes and (yield unique_keys.keep_queued(holder))):
                if rule.on_conflict is OnConflict.RAISE:
                    raise UniqueKeyTakenError(row.name, str(row.unique_key), holder, _ADVICE[scope])
                return TaskId.held(holder)
        for (task_id,) in (yield unique_keys.hand_over(holder, new_id, row, now)):
            return TaskId(task_id)
    return None


_ADVICE = {
    Scope.QUEUED: "It is free as soon as that one runs.",
    Scope.FOR_PERIOD: "It is free when its period is over.",
    Scope.FOREVER: "It is taken for ever.",
}


def _change(
    row: TaskRow, rule: KeyRule, whom: str, holder: int | None, now: datetime | None
) -> Statement:
    """Change the holder unless it runs; waits for a claim that is under way."""
    sql = f"""
        UPDATE {PENDING} p SET {_CHANGES[rule.on_conflict]}, changed_at = {INSTANT}
        WHERE {whom} AND p.state = '{State.PENDING}' RETURNING p.id
    """
    values = {
        "name": row.name,
        "unique_key": row.unique_key,
        "id": holder,
        "payload": row.payload,
        "run_at": row.terms.run_at,
        "delay": row.terms.delay.total_seconds(),
        "max_wait": rule.max_wait and rule.max_wait.total_seconds(),
        "now": now,
    }
    return Statement(sql, values)
