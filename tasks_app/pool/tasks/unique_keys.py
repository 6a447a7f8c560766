"""Keys whose scope is not that of a row: while queued, for a period, for ever.

A key is one row of ``task_key`` and points to the task that has it. It is taken and handed over in
one statement with the INSERT of the task. Whether a key of scope ``queued`` is still taken is asked
of its task's row, under a lock: no claim, settle or requeue has to know of keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.records import TaskRow
from tasks_app.domain.tasks.states import State
from tasks_app.domain.tasks.unique_key import KeyRule, Scope
from tasks_app.pool.connection.steps import Statement
from tasks_app.pool.tables import KEY, NOW, PENDING
from tasks_app.pool.tasks.insert import INSTANT, OWN, SHARED, inserted, unnested, values_of

_RULES = {**SHARED, "scope": "text", "period": "double precision"}
_NEXT_ID = f"nextval((SELECT CAST(pg_get_serial_sequence('{PENDING}', 'id') AS regclass)))"


def _with_their_tasks(taken: str) -> str:
    """Return the statement: ``taken`` gives keys to rows, and those rows alone are inserted."""
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
    RETURNING t.task_id
""")


def take(ids: Sequence[int | None], rows: Sequence[TaskRow], now: datetime | None) -> Statement:
    """Insert those rows whose key nobody ever had; yields their ids. None: the next id."""
    return Statement(_TAKE, _values(ids, rows, now))


def hand_over(holder: int, new_id: int | None, row: TaskRow, now: datetime | None) -> Statement:
    """Insert the row, and give it the key that ``holder`` had, if that still has it."""
    return Statement(_HAND_OVER, {**_values([new_id], [row], now), "holder": holder})


def holder(row: TaskRow, now: datetime | None) -> Statement:
    """Read the holder of the key: its id, its scope, and whether its period is over."""
    return Statement(_HOLDER, {"name": row.name, "unique_key": row.unique_key, "now": now})


def keep_queued(task_id: int) -> Statement:
    """Yield the task if it is PENDING; it is not claimed before this transaction is over."""
    return Statement(_KEEP_QUEUED, {"id": task_id})


def prune(connection: Connection, most: int, *, now: datetime | None = None) -> int:
    """Remove keys that nobody has any more, and return their number; waits for nobody.

    Read first and locked then: who was given a key meanwhile keeps it.
    """
    return len(connection.execute(_PRUNE, {"most": most, "now": now}).all())


def _values(
    ids: Sequence[int | None], rows: Sequence[TaskRow], now: datetime | None
) -> Mapping[str, Any]:
    kinds = dict.fromkeys(row.terms for row in rows)
    rules = [terms.rule or KeyRule() for terms in kinds]
    return {
        **values_of(ids, rows, now),
        "k_scope": [str(rule.scope) for rule in rules],
        "k_period": [rule.period and rule.period.total_seconds() for rule in rules],
    }
