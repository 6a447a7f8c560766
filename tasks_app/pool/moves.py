"""How rows leave RUNNING or the pending pool: one statement, whatever the verb and the number.

A verb says *which* rows and *where to* in a CTE named ``held``; this room writes the rest: delete
and insert into the target pool, or back to PENDING, and a line in the history. ``held`` locks its
rows and yields these columns:

    id, goes_to, due_at, failures, crashes, retry_level,
    result, kind, message, traceback, run_ms, event

``event`` null means: no line in the history.
"""

from __future__ import annotations

from sqlalchemy import TextClause, text

from tasks_app.domain.states import Pool, State, states_in
from tasks_app.pool.tables import ATTEMPT, CARRIED, COMPLETED, ERROR, NOW, PENDING, quoted

SKIP_LOCKED = "FOR UPDATE OF p SKIP LOCKED"
"""For groups: somebody's open transaction on one member must not stop the others."""
WAIT = "FOR UPDATE OF p"

_DECIDED = ("failures", "crashes", "retry_level", "result", "run_ms")
_KEPT = [c for c in CARRIED if c not in _DECIDED]
_GONE = ", ".join([*(f"p.{c}" for c in _KEPT), *(f"h.{c}" for c in _DECIDED), "h.goes_to"])
_MOVED = ", ".join([*_KEPT, *_DECIDED])
_INTO = f"{_MOVED}, state, error, finished_at"
_FROM = f"SELECT {_MOVED}, goes_to, error, {NOW} FROM gone"


def leave(held: str, *, before: str = "") -> TextClause:
    """Return the statement; it yields (id, goes_to) of the rows that moved.

    ``before`` holds CTEs that ``held`` reads, each ending in a comma. No CTE is joined to another:
    the planner knows nothing of their sizes, and a wrong guess costs the square of the group.
    """
    return text(f"""
    WITH {before}
    held AS MATERIALIZED ({held}),
    gone AS (
        DELETE FROM {PENDING} p USING held h
        WHERE p.id = h.id AND h.goes_to <> '{State.PENDING}'
        RETURNING {_GONE}, h.kind || coalesce(': ' || nullif(h.message, ''), '') AS error),
    again AS (
        UPDATE {PENDING} p
        SET state = '{State.PENDING}', due_at = h.due_at, scan_at = h.due_at, parked = NULL,
            failures = h.failures, crashes = h.crashes, retry_level = h.retry_level,
            lease_token = NULL, lease_until = NULL, owner = NULL
        FROM held h WHERE p.id = h.id AND h.goes_to = '{State.PENDING}'),
    completed AS (
        INSERT INTO {COMPLETED} ({_INTO}) {_FROM}
        WHERE goes_to IN ({quoted(*states_in(Pool.COMPLETED))})),
    failed AS (
        INSERT INTO {ERROR} ({_INTO}) {_FROM} WHERE goes_to = '{State.FAILED}'),
    history AS (
        INSERT INTO {ATTEMPT}
            (task_id, attempt, event, kind, message, traceback, owner, started_at, ended_at, run_ms)
        SELECT p.id, p.attempt, h.event, h.kind, h.message, h.traceback, p.owner, p.started_at,
            {NOW}, h.run_ms
        FROM held h JOIN {PENDING} p ON p.id = h.id WHERE h.event IS NOT NULL)
    SELECT id, goes_to FROM held
    """)
