"""Rules for tasks that are RUNNING."""

from __future__ import annotations

from datetime import timedelta

from tasks_app.domain.explain.facts import StoredRow, TaskFacts
from tasks_app.domain.explain.words import distance, exact, rough, when
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.tasks.states import State

KILL_TAKES = timedelta(seconds=10)
"""A parent that lives looks every second, and a heartbeat tells of runs a while later."""


def lease_over(facts: TaskFacts) -> Finding | None:
    row = facts.row
    if row is None or row.state is not State.RUNNING:
        return None
    if row.lease_until is None or row.lease_until > facts.now:
        return None
    fact = (
        f"Its worker {row.owner} vanished or stands still: the lease ended "
        f"{when(row.lease_until, facts.now)}, and the task waits for its rescue"
    )
    if facts.unscanned:
        advice = f"{facts.nobody_scans}, so nobody rescues it. {facts.run_by.start_scan}"
        return fail("lease over", fact, advice)
    return warn("lease over", fact, f"Nothing to do: the next scan {_takes_back(row)}.")


def silent(facts: TaskFacts) -> Finding | None:
    """Its worker's heartbeat is missing; its lease is not over."""
    row, silence = facts.row, facts.silent
    if row is None or row.state is not State.RUNNING or silence is None or facts.heard_at is None:
        return None
    if row.lease_until is None or row.lease_until <= facts.now:
        return None
    fact = (
        f"Its worker {row.owner} has been silent for {rough(silence)} ({exact(facts.heard_at)}); "
        f"one that lives is heard of every {rough(facts.beats_every)}"
    )
    if facts.unscanned:
        advice = f"{facts.nobody_scans}, so nobody will rescue it. {facts.run_by.start_scan}"
        return fail("silent", fact, advice)
    end = distance(row.lease_until, facts.now)
    then = f"unless it is heard of before, its lease ends {end}, and the next scan after that"
    return warn("silent", fact, f"Nothing to do: {then} {_takes_back(row)}.")


def cancel_requested(facts: TaskFacts) -> Finding | None:
    row = facts.row
    if row is None or row.state is not State.RUNNING or row.cancel_requested_at is None:
        return None
    at = when(row.cancel_requested_at, facts.now)
    return ok(
        "cancel requested",
        f"It was told {at} to stop, and still runs",
        "Nothing to do: ctx.cancelled tells its handler, which decides when it ends; "
        "whatever it does, the task never comes back.",
    )


def running(facts: TaskFacts) -> Finding | None:
    row = facts.row
    if row is None or row.state is not State.RUNNING:
        return None
    if facts.silent or row.lease_until is None or row.lease_until <= facts.now:
        return None
    since = when(row.started_at or facts.now, facts.now)
    said = _progress(facts)
    fact = f"It runs: attempt {row.attempt} began {since} on {row.owner}{said}"
    at = facts.progress.killed_at if facts.progress else None
    if at is not None and at < facts.now - KILL_TAKES:
        past = f"Its hard limit should have ended it and its process {when(at, facts.now)}"
        return warn("running", fact, f"{past}: look at that process, and kill it.")
    limit = f"its hard limit ends it and its process {when(at, facts.now)}" if at else ""
    if row.cancel_requested_at:
        told = ["it was told to stop", *([limit] if limit else [])]
        return ok("running", fact, f"Nothing to do: {', and '.join(told)}.")
    stop = f"to stop it{' before' if limit else ''}: tasks-app cancel {row.id}"
    return ok("running", fact, f"Nothing to do{limit and f': {limit}'}; {stop}")


def _progress(facts: TaskFacts) -> str:
    told = facts.progress
    if told is None or (told.fraction is None and not told.note):
        return ""
    parts = [f"{told.fraction:.0%}"] if told.fraction is not None else []
    parts += [told.note] if told.note else []
    return f", and is at {', '.join(parts)}"


def _takes_back(row: StoredRow) -> str:
    if row.cancel_requested_at:
        return "cancels it, as it was asked to"
    return "takes it back, uncharged"


RULES = (lease_over, silent, cancel_requested, running)
