"""Rules for tasks that are over or unknown."""

from __future__ import annotations

from tasks_app.domain.explain.facts import TaskFacts
from tasks_app.domain.explain.last_attempt import why_last
from tasks_app.domain.explain.words import when
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.handlers.settlement import OUTCOME_UNKNOWN
from tasks_app.domain.tasks.states import State

_ENDINGS = {
    State.SUCCEEDED: "It succeeded",
    State.SKIPPED: "It was skipped",
    State.CANCELLED: "It was cancelled",
    State.EXPIRED: "It expired",
}


def unknown(facts: TaskFacts) -> Finding | None:
    if facts.row is not None or facts.callback_of is not None:
        return None
    gone = f"It may have left no row. {facts.unkept.words} Or: its" if facts.unkept else "Its"
    return warn(
        "unknown",
        f"There is no task {facts.task_id} in any pool",
        f"{gone} producer rolled back or has not committed yet, or its age removed it; "
        "look for its business key: tasks-app list --biz-key KEY.",
    )


def ended(facts: TaskFacts) -> Finding | None:
    row = facts.row
    if row is None or row.state not in _ENDINGS:
        return None
    took = "" if row.run_ms is None else f" after {row.run_ms} ms"
    why = f": {row.error}" if row.error else ""
    at = when(row.finished_at or facts.now, facts.now)
    fact = f"{_ENDINGS[row.state]} {at} at attempt {row.attempt}{took}{why}"
    return ok("ended", fact, f"Nothing to do; to run it once more: tasks-app requeue {row.id}")


def failed(facts: TaskFacts) -> Finding | None:
    row = facts.row
    if row is None or row.state is not State.FAILED:
        return None
    cause = row.error or "no cause was written down"
    at = when(row.finished_at or facts.now, facts.now)
    most = f" of at most {row.max_attempts}" if row.max_attempts else ""
    fact = f"It failed for good {at}, {row.failures}{most} failures charged: {cause}"
    again = f"tasks-app requeue {row.id}"
    if cause.startswith(OUTCOME_UNKNOWN):
        advice = f"Look at the other side whether its effect took place; if it did not: {again}"
    else:
        why = f"It was not tried again: {why_last(row, facts.last)}"
        advice = f"{why}. Read tasks-app show {row.id}, mend the cause, then: {again}"
    return fail("failed", fact, advice)
