"""Why the last attempt of a task was the last one."""

from __future__ import annotations

from tasks_app.domain.explain.facts import StoredRow
from tasks_app.domain.explain.surroundings import LastAttempt
from tasks_app.domain.explain.words import count
from tasks_app.domain.handlers.outcomes import Fail, Retry
from tasks_app.domain.handlers.settlement import (
    BROKEN_OFF,
    CONNECTION_LOST,
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    REFUSED,
    VANISHED,
)
from tasks_app.domain.tasks.records import Attempt, Task

_ON_BOARD = {VANISHED, INTERRUPTED, CONNECTION_LOST, REFUSED}


def why_last(task: StoredRow | Task, last: LastAttempt | Attempt | None) -> str:
    """Say why the last attempt was the last one, of a task that failed for good."""
    kind = last.kind if last is not None else (task.error or "").partition(":")[0]
    if kind == OUTCOME_UNKNOWN:
        return "it may run at most once, and nobody knows what that run did"
    if kind == BROKEN_OFF:
        return (
            f"its run was broken off {count(task.crashes, 'time')}, by no limit, stop or operator"
        )
    if kind in _ON_BOARD and task.crashes:
        return f"it was on board {count(task.crashes, 'time')} when its worker or session vanished"
    if kind == Fail.__name__:
        return "Fail allows no retry"
    if task.max_attempts and task.failures >= task.max_attempts:
        return f"its retries are used up, with {task.failures} of {task.max_attempts} attempts"
    if kind == Retry.__name__:
        return "its Retry allows no more attempts"
    return f"its handler has no retry for {kind}, or may run at most once"
