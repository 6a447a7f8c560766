"""Explanations of tasks: all rules in order, and those for running, ended and grouped tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tasks_app.domain.durations import (
    count,
    distance_in_words,
    instant_in_words,
    rough_span,
    to_the_second,
)
from tasks_app.domain.explain import waiting
from tasks_app.domain.explain.estimate import Estimate, estimated_start
from tasks_app.domain.explain.facts import MOST_AHEAD, LastAttempt, StoredRow, TaskFacts
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.groups import GroupProgress
from tasks_app.domain.handlers.outcomes import Fail, Retry
from tasks_app.domain.handlers.settlement import (
    ABORTED,
    CONNECTION_LOST,
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    REFUSED,
    VANISHED,
)
from tasks_app.domain.tasks.records import Attempt, Task
from tasks_app.domain.tasks.states import State

KILL_TAKES = timedelta(seconds=10)  # a parent looks every second, a heartbeat reports it later
_LOST_WHILE_RUNNING = {VANISHED, INTERRUPTED, CONNECTION_LOST, REFUSED}
_ENDINGS = {
    State.SUCCEEDED: "It succeeded",
    State.SKIPPED: "It was skipped",
    State.CANCELLED: "It was cancelled",
    State.EXPIRED: "It expired",
}
_OF_ROW = (
    *("name", "queue", "state", "priority", "weight"),
    *("attempt", "failures", "max_attempts", "crashes"),
    *("created_at", "due_at", "scan_at", "expires_at", "started_at", "lease_until", "owner"),
    *("cancel_requested_at", "finished_at"),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task does not run, or how it ended."""

    task_id: int
    at: datetime
    """When, by the database's clock."""
    findings: tuple[Finding, ...]
    """The first is the answer; the others are true, too."""
    facts: dict[str, Any]
    """The facts behind it; instants are datetimes."""
    estimate: Estimate | None = None
    """When it probably starts, if it only waits in line. None: nobody knows."""

    @property
    def known(self) -> bool:
        return bool(self.facts)


def explain(facts: TaskFacts) -> Explanation:
    found = [callback_without_row(facts), task_is_unknown(facts)]
    for which, rules in RULES:
        row: StoredRow | None = getattr(facts, which)
        if row is not None:
            found += [rule(facts, row) for rule in rules]
    findings = [finding for finding in found if finding is not None]
    starts, words = None, ""
    if findings and findings[0].subject == "in line":
        starts, words = estimated_start(facts)
    if words:
        findings[0] = replace(findings[0], fact=f"{findings[0].fact}; {words}")
    return Explanation(facts.task_id, facts.now, tuple(findings), _shown(facts), starts)


def _shown(facts: TaskFacts) -> dict[str, Any]:
    row = facts.row
    of = {"member_of": facts.member_of, "callback_of": facts.callback_of}
    groups = {name: group.id for name, group in of.items() if group is not None}
    if row is None:
        return groups
    shown = {name: getattr(row, name) for name in _OF_ROW} | groups
    if row.put_off:
        shown |= {"due_at": row.own_date, "scan_at": None, "held": row.held or None}
    if facts.last is not None:
        shown |= {"last_cause": facts.last.cause, "last_ended_at": facts.last.ended_at}
    if facts.progress is not None:
        shown["node"] = facts.progress.node
    shown["heartbeat_at"] = facts.heartbeat_at
    if not row.is_over:
        service, scan = facts.service, facts.scan
        shown |= {
            "children": f"{service.children} serve the queue, {service.knowing} of them know the "
            "name",
            "busy": f"{service.busy} of them, at their last heartbeat",
            "scanned_at": scan.done_at if scan else None,
            "scanned_by": scan.holder if scan else None,
            "unpublished_since": facts.refused_since,
        }
        if scan is not None and scan.messages:
            shown["messages"] = f"{scan.messages} of the queue in the broker, at the last scan"
        if facts.line is not None:
            more = facts.line.ahead > MOST_AHEAD
            shown["ahead"] = f"more than {MOST_AHEAD:,}" if more else facts.line.ahead
    return {name: value for name, value in shown.items() if value is not None}


def callback_without_row(facts: TaskFacts) -> Finding | None:
    """It is a callback that has no row: the group is not over, or its row is gone."""
    group = facts.callback_of
    if facts.row is not None or group is None:
        return None
    progress, show = _group_progress(group), f"tasks-app groups show {group.id}"
    if group.outcome is None:
        fact = f"It does not exist yet: it waits as the callback of group {group.id}, {progress}"
        return ok("callback", fact, f"The last member's end calls it: {show}")
    fact = f"It would be the callback of group {group.id}, {progress}, and is in no pool"
    advice = "No callback was declared for that end, it left no row, or retention removed it"
    return ok("callback", fact, f"{advice}: {show}")


def task_is_unknown(facts: TaskFacts) -> Finding | None:
    if facts.row is not None or facts.callback_of is not None:
        return None
    gone = f"It may have left no row. {facts.unkept.words} Or: its" if facts.unkept else "Its"
    return warn(
        "unknown",
        f"There is no task {facts.task_id} in any pool",
        f"{gone} producer rolled back or has not committed yet, or retention removed it; "
        "search by its business key: tasks-app list --biz-key KEY.",
    )


def has_ended(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if row.state not in _ENDINGS:
        return None
    took = "" if row.run_ms is None else f" after {row.run_ms} ms"
    why = f": {row.error}" if row.error else ""
    at = instant_in_words(row.finished_at or facts.now, facts.now)
    fact = f"{_ENDINGS[row.state]} {at} at attempt {row.attempt}{took}{why}"
    if _was_undone(facts):
        return ok("ended", fact, _UNDONE)
    return ok("ended", fact, f"Nothing to do; to run it again: tasks-app requeue {row.id}")


def has_failed(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if row.state is not State.FAILED:
        return None
    cause = row.error or "no cause is recorded"
    at = instant_in_words(row.finished_at or facts.now, facts.now)
    most = f" of at most {row.max_attempts}" if row.max_attempts else ""
    fact = f"It failed for good {at}, {row.failures}{most} failures charged: {cause}"
    if _was_undone(facts):
        return ok("failed", fact, _UNDONE)
    again = f"tasks-app requeue {row.id}"
    if cause.startswith(OUTCOME_UNKNOWN):
        advice = f"Check on the other side whether its effect took place; if it did not: {again}"
    else:
        why = f"It was not retried: {why_last_attempt(row, facts.last)}"
        fix = "fix the cause (if it is in your code, restart the workers)"
        advice = f"{why}. Read tasks-app show {row.id}, {fix}, then: {again}"
    return fail("failed", fact, advice)


_UNDONE = "Nothing to do: its flow was undone."


def _was_undone(facts: TaskFacts) -> bool:
    return facts.step_of is not None and facts.step_of.was_undone


def why_last_attempt(task: StoredRow | Task, last: LastAttempt | Attempt | None) -> str:
    """Say why the last attempt was the last one, of a task that failed for good."""
    kind = last.kind if last is not None else (task.error or "").partition(":")[0]
    if kind == OUTCOME_UNKNOWN:
        return "it may run at most once, and that run's outcome is unknown"
    if kind == ABORTED:
        times = count(task.crashes, "time")
        return f"its run was aborted {times}, but not by a limit, a stop or an operator"
    if kind in _LOST_WHILE_RUNNING and task.crashes:
        return f"its worker or session vanished {count(task.crashes, 'time')} while it ran"
    if kind == Fail.__name__:
        return "Fail allows no retry"
    if task.max_attempts and task.failures >= task.max_attempts:
        return f"its retries are used up, with {task.failures} of {task.max_attempts} attempts"
    if kind == Retry.__name__:
        return "its Retry allows no more attempts"
    return f"its handler has no retry for {kind}, or may run at most once"


def lease_over(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if row.lease_until is None or row.lease_until > facts.now:
        return None
    fact = (
        f"Its worker {row.owner} vanished or hangs: the lease ended "
        f"{instant_in_words(row.lease_until, facts.now)}, and the task waits for its rescue"
    )
    if facts.scan_is_late:
        advice = f"{facts.last_scan}, so it is not rescued. {facts.run_by.start_scan}"
        return fail("lease over", fact, advice)
    return warn("lease over", fact, f"Nothing to do: the next scan {_rescues(row)}.")


def heartbeat_missing(facts: TaskFacts, row: StoredRow) -> Finding | None:
    """Its worker's heartbeat is missing; its lease is not over."""
    silence = facts.silent
    if silence is None or facts.heartbeat_at is None:
        return None
    if row.lease_until is None or row.lease_until <= facts.now:
        return None
    fact = (
        f"Its worker {row.owner} has sent no heartbeat for {rough_span(silence)} "
        f"({to_the_second(facts.heartbeat_at)}); a live one sends one every "
        f"{rough_span(facts.heartbeat_every)}"
    )
    if facts.scan_is_late:
        advice = f"{facts.last_scan}, so it will not be rescued. {facts.run_by.start_scan}"
        return fail("silent", fact, advice)
    end = distance_in_words(row.lease_until, facts.now)
    then = f"if no heartbeat comes, its lease ends {end}, and the next scan after that"
    return warn("silent", fact, f"Nothing to do: {then} {_rescues(row)}.")


def _rescues(row: StoredRow) -> str:
    if row.cancel_requested_at:
        return "cancels it, as requested"
    return "takes it back, uncharged"


def cancel_requested(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if row.cancel_requested_at is None:
        return None
    return ok(
        "cancel requested",
        f"Its cancel was requested {instant_in_words(row.cancel_requested_at, facts.now)}, and it "
        "still runs",
        "Nothing to do if it ends: it is interrupted, and does not run again. If it does not: "
        f"tasks-app cancel {row.id} --kill-after 0s",
    )


def is_running(facts: TaskFacts, row: StoredRow) -> Finding | None:
    progress = facts.progress
    if facts.silent or row.lease_until is None or row.lease_until <= facts.now:
        return None
    since = instant_in_words(row.started_at or facts.now, facts.now)
    fact = f"It runs: attempt {row.attempt} began {since} on {row.owner}"
    if progress is not None and (progress.fraction is not None or progress.note):
        parts = [f"{progress.fraction:.0%}"] if progress.fraction is not None else []
        fact += f", and is at {', '.join([*parts, *([progress.note] if progress.note else [])])}"
    at = progress.killed_at if progress else None
    killed = f"{instant_in_words(at, facts.now)}" if at else ""
    if at is not None and at < facts.now - KILL_TAKES:
        past = f"Its hard limit should have ended it and its process {killed}"
        return warn("running", fact, f"{past}: check that process, and kill it.")
    limit = f"its hard limit ends it and its process {killed}" if at else ""
    if row.cancel_requested_at:
        ends = f"its cancel is requested{limit and f', and {limit}'}"
        return ok("running", fact, f"Nothing to do: {ends}.")
    stop = f"to stop it{' before' if limit else ''}: tasks-app cancel {row.id}"
    return ok("running", fact, f"Nothing to do{limit and f': {limit}'}; {stop}")


def member_of_group(facts: TaskFacts, _row: StoredRow) -> Finding | None:
    group = facts.member_of
    if group is None:
        return None
    if (of := facts.step_of) is not None:
        key = f", {of.flow.key}" if of.flow.key else ""
        fact = f"It is step {of.step.name} of flow {group.id} ({of.flow.name}{key})"
        advice = f"To see the flow: tasks-app flows show {group.id}"
        return ok("flow", f"{fact}, {_group_progress(group)}", advice)
    fact = f"It is a member of group {group.id}, {_group_progress(group)}"
    return ok("group", fact, f"To see the group: tasks-app groups show {group.id}")


def callback_of_group(facts: TaskFacts, _row: StoredRow) -> Finding | None:
    group = facts.callback_of
    if group is None:
        return None
    fact = f"It is the callback of group {group.id}, {_group_progress(group)}"
    return ok("callback", fact, f"To see the group: tasks-app groups show {group.id}")


def _group_progress(group: GroupProgress) -> str:
    if group.outcome is None:
        return f"of whose {count(group.total, 'member')} {group.left} have not ended"
    ends = f"{group.succeeded} succeeded and {group.failed} failed of {group.total}"
    return f"which is over ({group.outcome}: {ends})"


Rule = Callable[[TaskFacts, StoredRow], Finding | None]
# The row that rules are for, as TaskFacts names it, and the rules in the order of their findings.
RULES: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    ("row", (has_ended, has_failed)),
    ("running", (lease_over, heartbeat_missing, cancel_requested, is_running)),
    *waiting.RULES_FOR_WAITING,
    ("row", (member_of_group, callback_of_group)),
)
