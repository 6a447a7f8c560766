"""Rules for tasks that a worker holds."""

from __future__ import annotations

from tasks_app.domain.explain.facts import Facts
from tasks_app.domain.explain.words import when
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.states import State


def lease_over(facts: Facts) -> Finding | None:
    """Its worker renews its lease no more."""
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
        return fail("lease over", fact, "Nobody scans, so nobody rescues: start beat or a worker.")
    return warn("lease over", fact, "Nothing to do: the next scan takes it back, uncharged.")


def cancel_requested(facts: Facts) -> Finding | None:
    """Somebody asked for its end."""
    row = facts.row
    if row is None or row.state is not State.RUNNING or row.cancel_requested_at is None:
        return None
    at = when(row.cancel_requested_at, facts.now)
    return ok(
        "cancel requested",
        f"It was told {at} to stop, and still runs",
        "Its handler decides: ctx.cancelled tells it; whatever it does, it never comes back.",
    )


def running(facts: Facts) -> Finding | None:
    """It runs."""
    row = facts.row
    if row is None or row.state is not State.RUNNING:
        return None
    since = when(row.started_at or facts.now, facts.now)
    said = _progress(facts)
    fact = f"It runs: attempt {row.attempt} began {since} on {row.owner}{said}"
    return ok("running", fact, f"Nothing to do; to stop it: tasks-app cancel {row.id}")


def _progress(facts: Facts) -> str:
    told = facts.progress
    if told is None or (told.fraction is None and not told.note):
        return ""
    parts = [f"{told.fraction:.0%}"] if told.fraction is not None else []
    parts += [told.note] if told.note else []
    return f", and is at {', '.join(parts)}"


RULES = (lease_over, cancel_requested, running)
