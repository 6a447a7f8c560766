"""Rules for tasks that wait: for a date, a queue, a lock, a worker, a limit, or their order."""

from __future__ import annotations

import shlex

from tasks_app.domain.durations import NAME_ITS_MODULE, count, instant_in_words
from tasks_app.domain.errors import similar
from tasks_app.domain.explain.facts import MOST_AHEAD, RunBy, StoredRow, TaskFacts
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, BreakerState
from tasks_app.domain.flow_control.limits import REASON_WORDS, WaitingKind
from tasks_app.domain.tasks.states import Event

_LEAST = 2
"""Connections that a child must have: one of its own, one for the running handler."""
_LESS = "Raise it so, start fewer children, or put a pooler between."


def held(facts: TaskFacts) -> Finding | None:
    row, hold = facts.waiting, facts.hold
    if row is None or not row.held:
        return None
    put = (
        f"was put on hold {instant_in_words(hold.since, facts.now)} by {hold.by}"
        if hold
        else "is on hold"
    )
    why = f": {hold.why}" if hold and hold.why else ""
    command = f"tasks-app release {row.id}"
    return warn("held", f"It {put}{why}", f"When it may go on: {command}")


def disabled(facts: TaskFacts) -> Finding | None:
    row = facts.waiting
    if row is None or row.enabled:
        return None
    then = "the next scan skips it" if row.due_at <= facts.now else "it is skipped when it is due"
    at = "" if row.held else f", {instant_in_words(row.due_at, facts.now)}"
    command = f"tasks-app enable {row.id}"
    return warn("disabled", f"It is disabled: {then}{at}", f"To run it all the same: {command}")


def expired(facts: TaskFacts) -> Finding | None:
    row = facts.waiting
    if row is None or row.expires_at is None or row.expires_at > max(row.due_at, facts.now):
        return None
    end = instant_in_words(row.expires_at, facts.now)
    over = row.expires_at <= facts.now
    fact = f"It expired {end}" if over else f"It expires {end}, before it is due"
    advice = f"It becomes EXPIRED when it is looked at; to run it then: tasks-app requeue {row.id}"
    return warn("expired", fact, advice)


def lock_held(facts: TaskFacts) -> Finding | None:
    row, denial = facts.waiting, facts.denial
    if row is None or denial is None:
        return None
    often = f", {denial.times} times since {instant_in_words(denial.since, facts.now)}"
    free = "" if denial.held else "; nobody holds it now"
    fact = (
        f"Attempt {row.attempt} was denied a lock {instant_in_words(denial.at, facts.now)}"
        f"{often if denial.times > 1 else ''}: {denial.by or denial.resource}{free}"
    )
    advice = f"It asks again at its next run. Who has it: tasks-app locks list {denial.resource}"
    return ok("lock held", fact, advice)


def not_due(facts: TaskFacts) -> Finding | None:
    row = facts.waiting
    if row is None or row.held or row.due_at <= facts.now:
        return None
    at = instant_in_words(row.due_at, facts.now)
    advice = "Nothing to do: it starts by itself then."
    return ok("not due", f"It is not due yet, but {at}: {_put_off(facts, row)}", advice)


def _put_off(facts: TaskFacts, row: StoredRow) -> str:
    if row.attempt == 0:
        wait = "its policy waits before the first run" if row.retry_level else "it was created so"
        return f"{wait}, with run_at or delay" if not row.retry_level else wait
    last = facts.last
    if row.outages and row.outage_since and (last is None or last.event != Event.FAIL):
        since = instant_in_words(row.outage_since, facts.now)
        return (
            f"it met something that was down {count(row.outages, 'time')}, first {since}; "
            f"that charges nothing, {row.failures} failures charged"
        )
    if last is None or last.attempt != row.attempt:
        return f"attempt {row.attempt} asked for later (Snooze), or was given back with a wait"
    if last.event == Event.RESCUE:
        return (
            f"attempt {row.attempt} ended without an outcome ({last.kind}), and it comes back at a "
            f"distance from the others; crashes: {row.crashes}"
        )
    most = f" of at most {row.max_attempts}" if row.max_attempts else ""
    return (
        f"attempt {row.attempt} failed with {last.cause.rstrip('.')}; it is in wait "
        f"{row.retry_level} of its policy, {row.failures}{most} failures charged"
    )


def paused(facts: TaskFacts) -> Finding | None:
    stop = facts.stop
    if facts.waiting is None or stop is None:
        return None
    every = stop.queue == "*"
    which = "Every queue" if every else f"Its queue {stop.queue}"
    why = f": {stop.reason}" if stop.reason else ""
    fact = f"{which} was paused {instant_in_words(stop.since, facts.now)}{why}"
    command = f"tasks-app resume {'--all' if every else stop.queue}"
    if stop.resume_at is None:
        return warn("paused", fact, f"When it may go on: {command}")
    end = instant_in_words(stop.resume_at, facts.now)
    return warn("paused", fact, f"It goes on by itself {end}; to let it go on now: {command}")


def closed(facts: TaskFacts) -> Finding | None:
    queue = facts.queue
    if facts.waiting is None or queue is None or queue.is_open:
        return None
    windows = "; ".join(map(str, queue.windows))
    fact = f"Its queue {queue.queue} is closed; its windows: {windows}"
    change = f"tasks-app queues set {queue.queue} --window …"
    if queue.opens_at is None:
        return warn("closed", f"{fact}; none opens within a year", f"Change them: {change}")
    opens = f"the next one opens {instant_in_words(queue.opens_at, facts.now)}"
    return ok("closed", f"{fact}; {opens}", f"Nothing to do; to change them: {change}")


def gate(facts: TaskFacts) -> Finding | None:
    queue = facts.queue
    if facts.waiting is None or queue is None or queue.shut is None:
        return None
    fact = f"Its queue {queue.queue} gives way: it runs only while {queue.gate}"
    option = "--running-below" if queue.shut == "running" else "--waiting-below"
    advice = f"tasks-app queues set {queue.queue} {option} none"
    return ok("gate", fact, f"Nothing to do; to let it run all the same: {advice}")


def breaker(facts: TaskFacts) -> Finding | None:
    standing = facts.breaker
    if facts.waiting is None or standing is None:
        return None
    name, since = standing.breaker.dependency, instant_in_words(standing.since, facts.now)
    why = f": {standing.reason}" if standing.reason else ""
    held = f"it is held, uncharged, with {count(standing.held, 'task')} in all"
    fact = f"It depends on {name}, whose breaker is {standing.state} since {since}{why}; {held}"
    if standing.mode is BreakerMode.OPEN:
        return warn("breaker", fact, f"When it may go on: tasks-app breakers auto {name}")
    wait = "Nothing to do: some are let through to try, the others follow when these succeed"
    if standing.state is BreakerState.OPEN:
        wait += f"; to let some through now: tasks-app breakers auto {name}"
    return warn("breaker", fact, f"{wait}.")


def no_connection(facts: TaskFacts) -> Finding | None:
    """A child that is refused its connections claims nothing, or cannot even say that it lives."""
    if facts.due is None:
        return None
    children = facts.service.children
    tight = [each for each in facts.connections if each.is_tight(_LEAST * children)]
    if not tight:
        return None
    limit = tight[0]
    fact = (
        f"The connection limit of {limit.of} is {limit.most}, and {limit.used} are in use; each "
        f"child needs {_LEAST}, and {count(children, 'child')} serve its queue: one that gets none "
        "claims nothing"
    )
    what, _, name = limit.of.partition(" ")
    return warn("no connection", fact, f"ALTER {what.upper()} {name} CONNECTION LIMIT … {_LESS}")


def no_worker(facts: TaskFacts) -> Finding | None:
    row = facts.waiting
    if row is None or facts.service.children:
        return None
    seen = facts.service.last_seen
    last = ""
    if seen:  # those that stop in order leave no trace
        until = instant_in_words(seen, facts.now)
        last = f"; one that was killed, or has lost the database, did until {until}"
    other = ""
    if facts.service.elsewhere:
        other = f"Its handler lives in workers of {', '.join(facts.service.elsewhere)}. "
    return fail(
        "no worker",
        f"No live worker serves its queue {row.queue}{last}",
        f"{other}{facts.run_by.start_worker(row.queue)}",
    )


def no_handler(facts: TaskFacts) -> Finding | None:
    row, service = facts.waiting, facts.service
    if row is None or not service.children or service.knowing:
        return None
    serve = (
        "1 live child serves"
        if service.children == 1
        else f"{service.children} live children serve"
    )
    fact = f"{serve} {row.queue}, none knows {row.name}{similar(row.name, service.names)}"
    if service.elsewhere:
        advice = f"Its handler lives in workers of {', '.join(service.elsewhere)}: one of them "
        return fail("no handler", fact, f"{advice}must serve {row.queue}, too.")
    advice = f"{NAME_ITS_MODULE}; until then it waits, uncharged."
    return fail("no handler", fact, advice)


def unpublished(facts: TaskFacts) -> Finding | None:
    """The broker takes no messages from anybody."""
    since, scan = facts.refused_since, facts.scan
    if facts.waiting is None or since is None or scan is None:
        return None
    why = f": {scan.refused_because}" if scan.refused_because else ""
    fact = f"Messages do not go out since {instant_in_words(since, facts.now)}{why}"
    advice = "See that the broker runs; the task is safe here, and goes out when it takes messages."
    return fail("broker", fact, advice)


def no_scan(facts: TaskFacts) -> Finding | None:
    row = facts.waiting
    if row is None or row.due_at > facts.now or not facts.unscanned:
        return None
    if facts.now - row.due_at < facts.late_after and not facts.deserted:
        return None
    looks_again_at = row.scan_at if row.parked else None  # not long after who set it aside
    if looks_again_at and facts.now - looks_again_at < facts.late_after and not facts.deserted:
        return None
    return fail("no scan", facts.nobody_scans, facts.run_by.start_scan)


RULES_WHEN_WAITING = (
    *(held, disabled, expired, lock_held, not_due, paused, closed, gate, breaker),
    *(no_connection, no_worker, no_handler, unpublished, no_scan),
)


def order_key_taken(facts: TaskFacts) -> Finding | None:
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


def limit_reached(facts: TaskFacts) -> Finding | None:
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


def deferred_by_scan(facts: TaskFacts) -> Finding | None:
    """A scan found it, and it could not run at that time."""
    row = facts.due
    if row is None or row.parked is None or row.scan_at is None:
        return None
    if facts.turn is not None or facts.shut:
        return None
    lacks_key = row.parked.startswith(
        REASON_WORDS[WaitingKind.ENCRYPTION]
    )  # also for the next worker
    if facts.ready is None and not lacks_key:
        return None
    again = instant_in_words(row.scan_at, facts.now)
    fact = f"It was set aside: {row.parked}; it is looked at again {again}"
    advice = "Mend that, unless it is mended: then it starts by itself."
    return warn("parked", fact, advice)


def in_queue(facts: TaskFacts) -> Finding | None:
    row = facts.ready
    if row is None or facts.ahead is None or facts.refused_since:
        return None
    if facts.deserted:
        return None
    since = instant_in_words(row.due_at, facts.now)
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


def runs_exclusively(facts: TaskFacts) -> Finding | None:
    row = facts.ready
    if row is None or not (row.crashes or row.at_most_once):
        return None
    crashed = f"it was on board of {count(row.crashes, 'worker')} that vanished"
    why = crashed if row.crashes else "it may run at most once"
    advice = "Nothing to do: its turn comes when a child has nothing else in hand."
    return ok("alone", f"It is only claimed alone, because {why}", advice)


RULES_WHEN_DUE = (order_key_taken, limit_reached, deferred_by_scan, in_queue, runs_exclusively)
