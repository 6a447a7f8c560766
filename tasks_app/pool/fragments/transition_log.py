"""The log of transitions: lines of statements that move rows, and of operators' actions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.config.urls import PREFIX
from tasks_app.domain.operations import Author
from tasks_app.domain.tasks.error_text import storable_text
from tasks_app.domain.tasks.states import Event, Pool, State
from tasks_app.pool.fragments.conditions import is_put_off
from tasks_app.pool.tables import ERROR, NOW, PENDING, TRANSITION, Clock


class Logged(StrEnum):
    OFF = "off"
    FAILURES = "failures"  # all ends of claims but successes, and sweeps
    ALL = "all"  # also successes, claims, creations, and operators' actions


def _level_of_environment() -> Logged:
    """Return the level for processes that read no settings, which would refuse other values."""
    given = os.environ.get(f"{PREFIX}TRANSITIONS", "")
    return Logged(given) if given in list(Logged) else Logged.OFF


class TransitionLog:
    """What this process logs; a process with settings sets the level when it starts."""

    level = _level_of_environment()

    @property
    def has_successes(self) -> bool:
        return self.level is Logged.ALL


LOG = TransitionLog()
CREATED = "create"  # the event of a line that has no transition
LONGEST = 200
_COLUMNS = "task_id, at, attempt, event, from_state, to_state, owner, started_at, due_at, detail"
_MADE_BY = """CASE WHEN n.schedule_id IS NOT NULL THEN 'schedule ' || n.schedule_id
    WHEN n.batch_id IS NOT NULL THEN 'group ' || n.batch_id ELSE 'producer' END"""


def lines_of(level: Logged, origin: State) -> str:
    """Return CTEs that write the lines of the rows that ``move_rows`` moves."""
    if level is Logged.OFF:
        return ""
    which = "" if level is Logged.ALL else f"WHERE goes_to <> '{State.SUCCEEDED}'"
    first = ""
    if level is Logged.ALL and origin is State.PENDING:
        first = f",\n    created AS ({creations('held n WHERE n.attempt = 0')})"
    return f"""{first},
    logged AS (
        INSERT INTO {TRANSITION} ({_COLUMNS})
        SELECT id, {NOW}, attempt, event, '{origin}', goes_to, owner, started_at,
            CASE WHEN goes_to = '{State.PENDING}' THEN back_at END, left(kind, {LONGEST})
        FROM held {which})"""


def lines_of_successes(rows: str, now: str = NOW) -> str:
    return f""",
    logged AS (
        INSERT INTO {TRANSITION} ({_COLUMNS})
        SELECT id, {now}, attempt, 'succeed', '{State.RUNNING}', '{State.SUCCEEDED}', owner,
            started_at, NULL, NULL
        FROM {rows})"""


def lines_of_claims() -> str:
    first = f"{PENDING} n WHERE n.id = ANY(ARRAY(SELECT c.id FROM claimed c WHERE c.attempt = 1))"
    return f""",
    created AS ({creations(first)}),
    logged AS (
        INSERT INTO {TRANSITION} ({_COLUMNS})
        SELECT c.id, {NOW}, c.attempt, '{Event.CLAIM}', '{State.PENDING}', '{State.RUNNING}',
            :owner, {NOW}, NULL, NULL
        FROM claimed c)"""


def creations(of: str) -> str:
    """Return the INSERT of a line for each row ``n`` that has none; a requeued one has one."""
    return f"""
        INSERT INTO {TRANSITION} (task_id, at, attempt, event, to_state, who)
        SELECT n.id, n.created_at, 0, '{CREATED}', '{State.PENDING}', {_MADE_BY}
        FROM {of} AND (
            SELECT true FROM {TRANSITION} t WHERE t.task_id = n.id AND t.event = '{CREATED}'
            LIMIT 1) IS NULL"""


class Moving:
    """A statement that moves rows, one text for each level of the log."""

    def __init__(self, sql: Callable[[Logged], str]) -> None:
        self.for_level = cache(lambda level: text(sql(level)))

    def __call__(self) -> TextClause:
        return self.for_level(LOG.level)


_DUE = f"""CASE WHEN p.state = '{State.PENDING}' AND :target IS NULL AND NOT {is_put_off()}
        THEN p.due_at END"""
_LOG_ACTION = {
    pool: text(f"""
    INSERT INTO {TRANSITION}
        (task_id, at, attempt, event, from_state, to_state, due_at, detail, who, why)
    SELECT p.id, {NOW}, p.attempt, :event, coalesce(:origin, p.state), coalesce(:target, p.state),
        {due_at}, left(:detail, {LONGEST}), coalesce(nullif(:who, ''), current_user),
        nullif(:why, '')
    FROM {table} p WHERE p.id = ANY(CAST(:ids AS bigint[])) ORDER BY p.id""")
    for pool, table, due_at in ((Pool.PENDING, PENDING, _DUE), (Pool.ERROR, ERROR, "NULL"))
}
_CREATED = text(creations(f"{PENDING} n WHERE n.id = ANY(CAST(:ids AS bigint[]))"))


def log_operator_action(
    connection: Connection,
    event: str,
    ids: Sequence[int],
    by: Author,
    *,
    origin: State | None = None,
    target: State | None = None,
    detail: str | None = None,
    pool: Pool = Pool.PENDING,
    now: Clock = None,
) -> None:
    """Write a line for each task, which is in ``pool`` now."""
    # ``origin`` and ``target`` are its states before and after the action, if its row has
    # another: a requeued task was somewhere else, a cancelled one goes there.
    if not (LOG.has_successes and ids):
        return
    values = {"ids": sorted(ids), "now": now}
    if target is not None:
        connection.execute(_CREATED, values)
    action = {"event": event, "origin": origin, "target": target, "detail": detail}
    author = {"who": storable_text(by.who, LONGEST), "why": by.why}
    connection.execute(_LOG_ACTION[pool], {**values, **action, **author})
