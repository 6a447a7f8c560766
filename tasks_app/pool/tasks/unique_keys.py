"""Unique keys that outlive a row, and conflicts of a new task with a taken key."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.errors import UniqueKeyTakenError
from tasks_app.domain.tasks.records import (
    CreateOutcome,
    KeyRule,
    OnConflict,
    Scope,
    TaskId,
    TaskRow,
)
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.execute import Statement, Statements
from tasks_app.pool.fragments.conditions import UNPARKED, is_put_off, judged_anew
from tasks_app.pool.tables import KEY, NOW, PENDING, Clock
from tasks_app.pool.tasks.insert import INSTANT, OWN, SHARED, inserted, unnested, values_of

_RULES = {**SHARED, "scope": "text", "period": "double precision"}
_NEXT_ID = f"nextval((SELECT CAST(pg_get_serial_sequence('{PENDING}', 'id') AS regclass)))"


def _with_their_tasks(taken: str) -> str:
    """Return the statement: ``taken`` gives keys to rows, and only those rows are inserted."""
    given = inserted("n JOIN k USING (kind)", "NULL")
    return f"""
    WITH n AS MATERIALIZED (
        SELECT coalesce(g.id, {_NEXT_ID}) AS id, g.payload, g.biz_key, g.unique_key,
            g.order_key, g.limit_key, g.kind
        FROM {unnested(OWN, "n", "g")}),
    k AS MATERIALIZED (SELECT * FROM {unnested(_RULES, "k")}),
    taken AS MATERIALIZED ({taken} RETURNING task_id)
    {given} WHERE n.id = ANY(ARRAY(SELECT task_id FROM taken)) ORDER BY n.id RETURNING id
    """


_UNTIL = f"{INSTANT} + make_interval(secs => k.period)"
_TAKE = _with_their_tasks(f"""
    INSERT INTO {KEY} (name, unique_key, task_id, scope, until)
    SELECT k.name, n.unique_key, n.id, k.scope, {_UNTIL} FROM n JOIN k USING (kind)
    ORDER BY k.name COLLATE "C", n.unique_key COLLATE "C", n.id
    ON CONFLICT (name, unique_key) DO NOTHING
""")
_HAND_OVER = _with_their_tasks(f"""
    UPDATE {KEY} t SET task_id = n.id, scope = k.scope, until = {_UNTIL}
    FROM n JOIN k USING (kind)
    WHERE t.name = k.name AND t.unique_key = n.unique_key AND t.task_id = %(holder)s
""")
_HOLDER = f"""
    SELECT t.task_id, t.scope, coalesce(t.until <= {INSTANT}, false) FROM {KEY} t
    WHERE t.name = %(name)s AND t.unique_key = %(unique_key)s
"""
_KEEP_QUEUED = f"""
    SELECT p.id FROM {PENDING} p WHERE p.id = %(id)s AND p.state = '{State.PENDING}' FOR SHARE
"""
_PRUNE = text(f"""
    WITH ended AS MATERIALIZED (
        SELECT t.name, t.unique_key, t.task_id FROM {KEY} t WHERE t.until <= {NOW}
        UNION ALL
        SELECT t.name, t.unique_key, t.task_id FROM {KEY} t
        WHERE t.scope = '{Scope.QUEUED}'
          AND NOT EXISTS (SELECT FROM {PENDING} p WHERE p.id = t.task_id)
        LIMIT :most),
    locked AS MATERIALIZED (
        SELECT t.name, t.unique_key FROM {KEY} t
        JOIN ended USING (name, unique_key, task_id)
        FOR UPDATE OF t SKIP LOCKED)
    DELETE FROM {KEY} t USING locked l WHERE t.name = l.name AND t.unique_key = l.unique_key
    RETURNING t.task_id""")


def insert_with_keys(ids: Sequence[int | None], rows: Sequence[TaskRow], now: Clock) -> Statement:
    """Insert those rows whose key was never taken; yields their ids. None: the next id."""
    return Statement(_TAKE, _values(ids, rows, now))


def prune_keys(connection: Connection, most: int, *, now: Clock = None) -> int:
    """Remove keys without a holder, without waiting for locks; return their number."""
    # Read first and locked then: a key that is handed over meanwhile stays.
    return len(connection.execute(_PRUNE, {"most": most, "now": now}).all())


def _values(ids: Sequence[int | None], rows: Sequence[TaskRow], now: Clock) -> Mapping[str, Any]:
    kinds = dict.fromkeys(row.terms for row in rows)
    rules = [terms.rule or KeyRule() for terms in kinds]
    return {
        **values_of(ids, rows, now),
        "k_scope": [str(rule.scope) for rule in rules],
        "k_period": [rule.period and rule.period.total_seconds() for rule in rules],
    }


log = logging.getLogger(__name__)
_HOLDER_IN_POOL = f"""
    SELECT id, state FROM {PENDING} WHERE name = %(name)s AND unique_key = %(unique_key)s
"""
_DUE = f"""
    coalesce(CAST(%(run_at)s AS timestamptz), {INSTANT})
    + make_interval(secs => CAST(%(delay)s AS double precision))
"""
_LATEST = f"""
    CASE WHEN p.attempt = 0
        THEN p.created_at + make_interval(secs => CAST(%(max_wait)s AS double precision))
        WHEN {is_put_off()} THEN p.held_due_at ELSE p.due_at END
"""
"""After its first run max_wait is over: then its due date counts."""
_DUE_IN_TIME = f"""
    CASE WHEN CAST(%(max_wait)s AS double precision) IS NULL THEN {_DUE}
        ELSE least({_DUE}, {_LATEST}) END
"""
_CHANGES = {
    OnConflict.REPLACE_PAYLOAD: f"""payload = CAST(%(payload)s AS jsonb),
        locks = CAST(%(locks)s AS jsonb), {judged_anew("p")}""",
    # A held one keeps waiting; it gets the new date when it is released.
    OnConflict.RESCHEDULE: f"""
        due_at = CASE WHEN {is_put_off()} THEN p.due_at ELSE {_DUE_IN_TIME} END,
        scan_at = CASE WHEN {is_put_off()} THEN p.scan_at ELSE {_DUE_IN_TIME} END,
        held_due_at = CASE WHEN {is_put_off()} THEN {_DUE_IN_TIME} END, {UNPARKED}""",
}
_OUTCOMES = {
    OnConflict.REPLACE_PAYLOAD: CreateOutcome.REPLACED,
    OnConflict.RESCHEDULE: CreateOutcome.RESCHEDULED,
}
_BY_KEY = "p.name = %(name)s AND p.unique_key = %(unique_key)s"
_BY_ID = "p.id = %(id)s"
_NO_RULE = KeyRule()


def resolve_in_pool(row: TaskRow, now: Clock) -> Statements[TaskId | None]:
    """Return the holder of a key that is a column of its row; None: the key is free now.

    Raises:
        UniqueKeyTakenError: the policy is to raise.
    """
    rule = row.terms.rule or _NO_RULE
    if rule.on_conflict in _CHANGES:
        for (task_id,) in (yield _change(row, rule, _BY_KEY, None, now)):
            return TaskId.held(task_id, _OUTCOMES[rule.on_conflict])
    values = {"name": row.name, "unique_key": row.unique_key}
    for task_id, state in (yield Statement(_HOLDER_IN_POOL, values)):
        if rule.on_conflict is OnConflict.RAISE:
            raise UniqueKeyTakenError(row.name, str(row.unique_key), task_id)
        if state == State.RUNNING:
            log.warning(
                "Task %s, which is RUNNING, holds the unique_key of a new %s: no task was created. "
                "To run again, a handler raises Retry or Snooze.",
                task_id,
                row.name,
            )
        return TaskId.held(task_id)
    return None


_ADVICE = {
    Scope.QUEUED: "It is free as soon as that task runs.",
    Scope.FOR_PERIOD: "It is free when its period is over.",
    Scope.FOREVER: "It is taken for ever.",
}


def resolve_in_table(row: TaskRow, new_id: int | None, now: Clock) -> Statements[TaskId | None]:
    """Return the holder of a key in the table of keys, perhaps the new task; None: try again.

    A key of scope ``queued`` is taken while its task is PENDING. That task is locked first: either
    it starts after this transaction, or it runs already and the key is free.

    Raises:
        UniqueKeyTakenError: the policy is to raise.
    """
    rule = row.terms.rule or _NO_RULE
    key = {"name": row.name, "unique_key": row.unique_key, "now": now}
    for holder, scope, is_over in (yield Statement(_HOLDER, key)):
        if not is_over:
            changes = rule.on_conflict in _CHANGES
            if changes and (yield _change(row, rule, _BY_ID, holder, now)):
                return TaskId.held(holder, _OUTCOMES[rule.on_conflict])
            if scope != Scope.QUEUED or (
                not changes and (yield Statement(_KEEP_QUEUED, {"id": holder}))
            ):
                if rule.on_conflict is OnConflict.RAISE:
                    raise UniqueKeyTakenError(row.name, str(row.unique_key), holder, _ADVICE[scope])
                return TaskId.held(holder)
        values = {**_values([new_id], [row], now), "holder": holder}
        for (task_id,) in (yield Statement(_HAND_OVER, values)):
            return TaskId(task_id)
    return None


def _change(row: TaskRow, rule: KeyRule, whom: str, holder: int | None, now: Clock) -> Statement:
    sql = f"""
        UPDATE {PENDING} p SET {_CHANGES[rule.on_conflict]}, changed_at = {INSTANT}
        WHERE {whom} AND p.state = '{State.PENDING}' RETURNING p.id
    """
    values = {
        "name": row.name,
        "unique_key": row.unique_key,
        "id": holder,
        "payload": row.payload,
        "locks": row.terms.locks,
        "run_at": row.terms.run_at,
        "delay": row.terms.delay.total_seconds(),
        "max_wait": rule.max_wait and rule.max_wait.total_seconds(),
        "now": now,
    }
    return Statement(sql, values)
