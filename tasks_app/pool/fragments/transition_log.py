"""The log of transitions: statements that move rows write a line for each, if that is wanted.

A line is written by the statement of the move, so they commit together. It names the claim that
ended: who held it, and since when. So claims need no lines of their own. What people do is in the
audit instead.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache

from sqlalchemy import TextClause, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import NOW, TRANSITION


class Logged(StrEnum):
    """Which moves have a line."""

    OFF = "off"
    FAILURES = "failures"
    """All but successes: what failed, was put off, given back, rescued, cancelled, swept."""
    ALL = "all"


class TransitionLog:
    """What this process logs; whoever runs tasks or leads says so when it starts."""

    level = Logged.OFF

    @property
    def has_successes(self) -> bool:
        return self.level is Logged.ALL


LOG = TransitionLog()
_COLUMNS = "task_id, at, attempt, event, from_state, to_state, owner, started_at, due_at, detail"
LONGEST = 200


def lines_of(rows: str, level: Logged, origin: State = State.RUNNING) -> str:
    """Return a CTE that writes the lines of the moved ``rows``, as ``move_rows`` has them."""
    if level is Logged.OFF:
        return ""
    which = "" if level is Logged.ALL else f"WHERE goes_to <> '{State.SUCCEEDED}'"
    return f""",
    logged AS (
        INSERT INTO {TRANSITION} ({_COLUMNS})
        SELECT id, {NOW}, attempt, event, '{origin}', goes_to, owner, started_at,
            CASE WHEN goes_to = '{State.PENDING}' THEN back_at END, left(kind, {LONGEST})
        FROM {rows} {which})"""


def lines_of_successes(rows: str, now: str = NOW) -> str:
    """Return the same of rows that all succeeded."""
    return f""",
    logged AS (
        INSERT INTO {TRANSITION} ({_COLUMNS})
        SELECT id, {now}, attempt, 'succeed', '{State.RUNNING}', '{State.SUCCEEDED}', owner,
            started_at, NULL, NULL
        FROM {rows})"""


class Moving:
    """A statement that moves rows, in the wording that the log asks for."""

    def __init__(self, worded: Callable[[Logged], str]) -> None:
        self.worded = cache(lambda level: text(worded(level)))

    def __call__(self) -> TextClause:
        return self.worded(LOG.level)
