"""Rules for tasks that are due and have not started."""

from __future__ import annotations

import shlex

from tasks_app.domain.explain.facts import MOST_AHEAD, TaskFacts
from tasks_app.domain.explain.run_by import RunBy
from tasks_app.domain.explain.words import count, when
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.flow_control.waiting_reason import WORDS, WaitingKind


def order(facts: TaskFacts) -> Finding | None:
    row, turn = facts.due, facts.turn
    if row is None or turn is None:
        return None
    key = f"Its order key {row.order_key} is held by task"
    if turn.running is not None:
        advice = "Nothing to do: it goes on when that one is over."
        return ok("order", f"{key} {turn.running}, which runs", advice)
    if turn.failed is not None:
        advice = f"tasks-app requeue {turn.failed}, or: tasks-app unblock {turn.failed}"
        return fail("order", f"{key} {turn.failed}, which failed for good", advice)
    if turn.first is not None:
        fact = f"{key} {turn.first}, which is due before it or waits to be tried again"
        return ok("order", fact, f"That one goes first: tasks-app explain {turn.first}")
    return None


def limit(facts: TaskFacts) -> Finding | None:
    row = facts.due
    if row is None or not facts.shut:
        return None
    shut = facts.shut[0]
    allowed = shut.limit
    if allowed.most is not None and shut.running >= allowed.most:
        fact = f"The limit of {allowed.kind} {shut.key} is reached: {allowed.most} at a time"
    else:
        fact = (
            f"The limit of {allowed.kind} {shut.key} is reached: {allowed.rate} in {allowed.span}"
        )
    option = "--most N" if allowed.most is not None else "--rate N/1m"
    command = f"tasks-app limits set {allowed.kind} {shlex.quote(allowed.target)} {option}"
    return ok(
        "limit", fact, f"Nothing to do: it goes on when there is room; to change it: {command}"
    )


def parked(facts: TaskFacts) -> Finding | None:
    """A scan found it, and it could not run at that time."""
    row = facts.due
    if row is None or row.parked is None or row.scan_at is None:
        return None
    if facts.turn is not None or facts.shut:
        return None
    lacks_key = row.parked.startswith(WORDS[WaitingKind.ENCRYPTION])  # also for the next worker
    if facts.ready is None and not lacks_key:
        return None
    fact = f"It was set aside: {row.parked}; it is looked at again {when(row.scan_at, facts.now)}"
    advice = "Mend that, unless it is mended: then it starts by itself."
    return warn("parked", fact, advice)


def in_line(facts: TaskFacts) -> Finding | None:
    row = facts.ready
    if row is None or facts.ahead is None or facts.refused_since:
        return None
    if facts.deserted:
        return None
    since = when(row.due_at, facts.now)
    if facts.ahead == 0:
        next_ = "a child takes it when it has room"  # without a scan: a child claims by itself
        if facts.run_by is not RunBy.WORK:
            next_ = _next_step(facts)
        fact = f"It became due {since} and is first in its line: {next_}"
    else:
        most = facts.ahead > MOST_AHEAD
        number = f"more than {MOST_AHEAD:,} tasks" if most else count(facts.ahead, "task")
        go = "goes" if facts.ahead == 1 else "go"
        fact = (
            f"It became due {since} and waits in line: {number} of queue {row.queue}, "
            f"of a better priority or due before, {go} first"
        )
    if facts.now - row.due_at < facts.late_after:
        return ok("in line", fact, "Nothing to do; ask again in a while.")
    advice = "Start more workers for this queue; tasks-app doctor tells what else is wrong."
    return warn("in line", fact, advice)


def _next_step(facts: TaskFacts) -> str:
    messages = facts.scan.messages if facts.scan else 0
    if not messages:
        return "the next scan publishes it"
    verb = "waits" if messages == 1 else "wait"
    return f"{count(messages, 'message')} of its queue {verb} in the broker for a child with room"


def alone(facts: TaskFacts) -> Finding | None:
    row = facts.ready
    if row is None or not (row.crashes or row.at_most_once):
        return None
    crashed = f"it was on board of {count(row.crashes, 'worker')} that vanished"
    why = crashed if row.crashes else "it may run at most once"
    advice = "Nothing to do: its turn comes when a child has nothing else in hand."
    return ok("alone", f"It is only claimed alone, because {why}", advice)


RULES = (order, limit, parked, in_line, alone)
