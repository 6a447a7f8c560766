"""Rules for tasks that wait: for a date, a queue, a lock, a worker, a limit, or their order."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from tasks_app.domain.durations import NAME_ITS_MODULE, count, instant_in_words
from tasks_app.domain.errors import similar
from tasks_app.domain.events import AwaitedEvent, event_in_words
from tasks_app.domain.explain.facts import MOST_AHEAD, RunBy, StoredRow, TaskFacts
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, BreakerState
from tasks_app.domain.flow_control.limits import REASON_WORDS, GateKind, WaitingKind
from tasks_app.domain.flows import After, StepEnd, StepOfFlow, step_in_words, to_mend
from tasks_app.domain.tasks.states import Event

_LEAST = 2  # connections of a child: one of its own, one for the running handler
_MOST_NAMED = 5  # needs in a sentence


def held(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if not row.held:
        return None
    fact, hold = "It is on hold", facts.hold
    if hold:
        fact = f"It was put on hold {instant_in_words(hold.since, facts.now)} by {hold.by}"
        fact += f": {hold.why}" if hold.why else ""
    return warn("held", fact, f"To release it: tasks-app release {row.id}")


def open_needs(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if not row.waits_for and not _waits_for_events(facts, row):
        return None
    return needs_of(facts.step_of, facts.events, facts.now)


def _waits_for_events(facts: TaskFacts, row: StoredRow) -> bool:
    """Whether its date is that of a time-out, which an event would bring forward."""
    ends = [event.until for event in facts.events if event.is_open and event.until is not None]
    date = row.own_date
    return bool(ends) and date is not None and facts.now < date <= max(ends)


def needs_of(
    of: StepOfFlow | None, awaited: Sequence[AwaitedEvent], now: datetime
) -> Finding | None:
    """Say which steps and events a task waits for, and what to do; None: for none."""
    steps = {} if of is None else {step.name: step for step in of.flow.steps}
    needs = [] if of is None else [(need, steps[need.step]) for need in of.step.open_needs]
    events = [event for event in awaited if event.is_open]
    words = [
        f"{'' if need.after is After.SUCCESS else f'the {need.after} of '}step {step.name} "
        f"(task {step.task_id}, {step_in_words(step, now)})"
        for need, step in needs
    ]
    words += [event_in_words(event, now) for event in events]
    if not words:
        return None if of is None else _items_of(of)
    if (more := len(words) - _MOST_NAMED) > 0:
        command = "events list --waiting" if of is None else f"flows show {of.flow.id}"
        words[_MOST_NAMED:] = [f"{more} more: tasks-app {command}"]
    fact = f"It waits for {', '.join(words[:-1])}{' and ' * (len(words) > 1)}{words[-1]}"
    failed = [] if of is None else to_mend(of.flow.steps)
    if bad := [str(step.task_id) for _, step in needs if step in failed]:
        again = f"tasks-app requeue {' '.join(bad[:_MOST_NAMED])}"
        return warn("needs", fact, f"To go on, fix the cause, then: {again}")
    advice = (
        f"to see what keeps that one: tasks-app explain {needs[0][1].task_id}"
        if needs
        else (f"to send that: tasks-app events send {shlex.quote(events[0].key)}")
    )
    return ok("needs", fact, f"Nothing to do; {advice}")


def _items_of(of: StepOfFlow) -> Finding | None:
    items = of.step.items
    if items is None or not items.left:
        return None
    fact = f"It waits for {items.left:,} of its {count(items.total, 'item')}"
    if not items.failed or of.was_undone:
        return ok("needs", fact, f"Nothing to do; to see them: tasks-app flows show {of.flow.id}")
    again = f"tasks-app requeue --group {of.flow.id} --state FAILED"
    failed = f"{fact}, of which {items.failed:,} failed"
    return warn("needs", failed, f"To go on, fix the cause, then: {again}")


def disabled(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if row.enabled:
        return None
    if facts.step_of is not None and facts.step_of.step.end is StepEnd.UNNEEDED:
        return ok("disabled", "Its flow does not need it any more", "Nothing to do; it is skipped")
    then = "the next scan skips it" if row.due_at <= facts.now else "it is skipped when it is due"
    at = "" if row.put_off else f", {instant_in_words(row.due_at, facts.now)}"
    advice = f"To run it anyway: tasks-app enable {row.id}"
    return warn("disabled", f"It is disabled: {then}{at}", advice)


def expired(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if row.expires_at is None or row.expires_at > max(row.due_at, facts.now):
        return None
    end = instant_in_words(row.expires_at, facts.now)
    over = row.expires_at <= facts.now
    before = "unless its needs are met before" if row.waits_for else "before it is due"
    fact = f"It expired {end}" if over else f"It expires {end}, {before}"
    advice = f"The next scan marks it EXPIRED; to run it after that: tasks-app requeue {row.id}"
    return warn("expired", fact, advice)


def lock_held(facts: TaskFacts, row: StoredRow) -> Finding | None:
    denial = facts.denial
    if denial is None:
        return None
    often = f", {denial.times} times since {instant_in_words(denial.since, facts.now)}"
    free = "" if denial.held else "; it is free now"
    fact = (
        f"Attempt {row.attempt} was denied a lock {instant_in_words(denial.at, facts.now)}"
        f"{often if denial.times > 1 else ''}: {denial.by or denial.resource}{free}"
    )
    advice = f"Its next run asks again. To see the holder: tasks-app locks list {denial.resource}"
    return ok("lock held", fact, advice)


def not_due(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if row.put_off or row.due_at <= facts.now or _waits_for_events(facts, row):
        return None
    fact = f"It is due {instant_in_words(row.due_at, facts.now)}: {_why_later(facts, row)}"
    return ok("not due", fact, "Nothing to do: it starts then.")


def _why_later(facts: TaskFacts, row: StoredRow) -> str:
    if row.attempt == 0:
        if row.retry_level:
            return "its policy waits before the first run"
        return "it was created with run_at or delay"
    last = facts.last
    if row.outages and row.outage_since and (last is None or last.event != Event.FAIL):
        since = instant_in_words(row.outage_since, facts.now)
        return (
            f"a dependency was down {count(row.outages, 'time')}, first {since}; "
            f"that charges nothing, {row.failures} failures charged"
        )
    if last is None or last.attempt != row.attempt:
        return f"attempt {row.attempt} asked for a later run (Snooze), or was released with a delay"
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


def paused(facts: TaskFacts, _row: StoredRow) -> Finding | None:
    stop = facts.stop
    if stop is None:
        return None
    every = stop.queue == "*"
    which = "Every queue" if every else f"Its queue {stop.queue}"
    why = f": {stop.reason}" if stop.reason else ""
    fact = f"{which} was paused {instant_in_words(stop.since, facts.now)}{why}"
    command = f"tasks-app resume {'--all' if every else stop.queue}"
    if stop.resume_at is None:
        return warn("paused", fact, f"To resume: {command}")
    end = instant_in_words(stop.resume_at, facts.now)
    return warn("paused", fact, f"It resumes {end}; to resume now: {command}")


def closed(facts: TaskFacts, _row: StoredRow) -> Finding | None:
    queue = facts.queue
    if queue is None or queue.is_open:
        return None
    windows = "; ".join(map(str, queue.windows))
    fact = f"Its queue {queue.queue} is closed; its windows: {windows}"
    change = f"tasks-app queues set {queue.queue} --window …"
    if queue.opens_at is None:
        return warn("closed", f"{fact}; none opens within a year", f"Change them: {change}")
    opens = f"the next one opens {instant_in_words(queue.opens_at, facts.now)}"
    return ok("closed", f"{fact}; {opens}", f"Nothing to do; to change them: {change}")


def gate(facts: TaskFacts, _row: StoredRow) -> Finding | None:
    queue = facts.queue
    if queue is None or queue.shut is None:
        return None
    fact = f"Its queue {queue.queue} gives way: it runs only while {queue.gate}"
    option = "--only-while" if queue.shut == "load" else f"--{queue.shut}-below"
    advice = f"tasks-app queues set {queue.queue} {option} none"
    return ok("gate", fact, f"Nothing to do; to let it run anyway: {advice}")


def breaker(facts: TaskFacts, _row: StoredRow) -> Finding | None:
    standing = facts.breaker
    if standing is None:
        return None
    name, since = standing.breaker.dependency, instant_in_words(standing.since, facts.now)
    why = f": {standing.reason}" if standing.reason else ""
    held = f"it is held, uncharged, with {count(standing.held, 'task')} in all"
    fact = f"It depends on {name}, whose breaker is {standing.state} since {since}{why}; {held}"
    if standing.mode is BreakerMode.OPEN:
        return warn("breaker", fact, f"To leave it to the outcomes: tasks-app breakers auto {name}")
    wait = "Nothing to do: some tasks probe it, and the others follow when these succeed"
    if standing.state is BreakerState.OPEN:
        wait += f"; to probe now: tasks-app breakers auto {name}"
    return warn("breaker", fact, f"{wait}.")


def no_connection(facts: TaskFacts, _row: StoredRow) -> Finding | None:
    """A child that is refused its connections claims nothing, and may send no heartbeat."""
    children = facts.service.children
    tight = [each for each in facts.connections if each.is_tight(_LEAST * children)]
    if not tight:
        return None
    limit = tight[0]
    fact = (
        f"The connection limit of {limit.of} is {limit.most}, and {limit.used} are in use; each "
        f"child needs {_LEAST}, and {count(children, 'child')} serve its queue: a child without "
        "one claims nothing"
    )
    what, _, name = limit.of.partition(" ")
    less = "Raise it so, start fewer children, or put a pooler between."
    return warn("no connection", fact, f"ALTER {what.upper()} {name} CONNECTION LIMIT … {less}")


def no_worker(facts: TaskFacts, row: StoredRow) -> Finding | None:
    service = facts.service
    if service.children:
        return None
    last = other = ""
    if service.last_seen:  # those that stop in order leave no trace
        until = instant_in_words(service.last_seen, facts.now)
        last = f"; one that was killed, or lost the database, did until {until}"
    if service.elsewhere:
        other = f"Workers of {', '.join(service.elsewhere)} have its handler. "
    fact = f"No live worker serves its queue {row.queue}{last}"
    return fail("no worker", fact, f"{other}{facts.run_by.start_worker(row.queue)}")


def no_handler(facts: TaskFacts, row: StoredRow) -> Finding | None:
    service = facts.service
    if not service.children or service.knowing:
        return None
    many = service.children > 1
    serve = f"{service.children} live {'children serve' if many else 'child serves'}"
    fact = f"{serve} {row.queue}, none knows {row.name}{similar(row.name, service.names)}"
    advice = f"{NAME_ITS_MODULE}; until then it waits, uncharged."
    if service.elsewhere:
        advice = (
            f"Workers of {', '.join(service.elsewhere)} have its handler: one of them must serve "
            f"{row.queue}, too."
        )
    return fail("no handler", fact, advice)


def unpublished(facts: TaskFacts, _row: StoredRow) -> Finding | None:
    """The broker takes no messages from any process."""
    since, scan = facts.refused_since, facts.scan
    if since is None or scan is None:
        return None
    why = f": {scan.refused_because}" if scan.refused_because else ""
    fact = f"No message could be published since {instant_in_words(since, facts.now)}{why}"
    advice = "Check that the broker runs; the task is safe here, and is published when it does."
    return fail("broker", fact, advice)


def no_scan(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if row.due_at > facts.now or not facts.scan_is_late:
        return None
    next_look = row.scan_at if row.parked else None  # late counts from the scan that set it aside
    late = min(facts.now - at for at in (row.due_at, next_look) if at is not None)
    if late < facts.late_after and not facts.no_leader:
        return None
    return fail("no scan", facts.last_scan, facts.run_by.start_scan)


def order_key_taken(facts: TaskFacts, row: StoredRow) -> Finding | None:
    turn = facts.turn
    if turn is None:
        return None
    key = f"Its order key {row.order_key} is held by task"
    if turn.running is not None:
        advice = "Nothing to do: it goes on when that one is over."
        return ok("order", f"{key} {turn.running}, which runs", advice)
    if turn.failed is not None:
        advice = f"tasks-app requeue {turn.failed}, or: tasks-app unblock {turn.failed}"
        return fail("order", f"{key} {turn.failed}, which failed for good", advice)
    if turn.first is not None:
        fact = f"{key} {turn.first}, which is due before it or waits for a retry"
        return ok("order", fact, f"That one goes first: tasks-app explain {turn.first}")
    return None


def limit_reached(facts: TaskFacts, row: StoredRow) -> Finding | None:
    if not facts.shut:
        return None
    limit, key, running = facts.shut[0].limit, facts.shut[0].key, facts.shut[0].running
    at_most = limit.most is not None and running >= limit.most
    allowed = f"{limit.most} at a time" if at_most else f"{limit.rate} in {limit.span}"
    weighs = row.weight and limit.kind is GateKind.KEY and not at_most
    takes = f", of which it takes {row.weight:,}" if weighs else ""
    option = "--most N" if limit.most is not None else "--rate N/1m"
    command = f"tasks-app limits set {limit.kind} {shlex.quote(limit.target)} {option}"
    return ok(
        "limit",
        f"The limit of {limit.kind} {key} is reached: {allowed}{takes}",
        f"Nothing to do: it starts when there is room; to change the limit: {command}",
    )


def locks_taken(facts: TaskFacts, _row: StoredRow) -> Finding | None:
    if not facts.locked:
        return None
    more = f", and {len(facts.locked) - 1} more" if len(facts.locked) > 1 else ""
    resource, obstacle = facts.locked[0]
    line = f"tasks-app locks list {shlex.quote(resource)}"
    advice = f"Nothing to do: it goes on when that is over; to see the line: {line}"
    return ok("lock", f"It waits for its lock: {obstacle}{more}", advice)


def deferred_by_scan(facts: TaskFacts, row: StoredRow) -> Finding | None:
    """A scan found it, and it could not run at that time."""
    if row.parked is None or row.scan_at is None or facts.turn or facts.shut or facts.locked:
        return None
    lacks_key = row.parked.startswith(REASON_WORDS[WaitingKind.ENCRYPTION])
    if facts.ready is None and not lacks_key:  # a lacking key also stops the next worker
        return None
    again = instant_in_words(row.scan_at, facts.now)
    fact = f"It was set aside: {row.parked}; the scan looks at it again {again}"
    return warn("parked", fact, "Fix that, if it is not fixed yet: then it starts by itself.")


def in_queue(facts: TaskFacts, row: StoredRow) -> Finding | None:
    line = facts.line
    if line is None or facts.refused_since or facts.no_leader:
        return None
    since = instant_in_words(row.due_at, facts.now)
    if line.ahead == 0:
        fact = f"It became due {since} and is first in its line: {_next_step(facts)}"
    else:
        most = line.ahead > MOST_AHEAD
        number = f"more than {MOST_AHEAD:,} tasks" if most else count(line.ahead, "task")
        fact = (
            f"It became due {since} and waits in line: {number} of queue {row.queue}, of a better "
            f"priority or due before, {'goes' if line.ahead == 1 else 'go'} first"
        )
    if facts.now - row.due_at < facts.late_after:
        return ok("in line", fact, "Nothing to do; ask again in a while.")
    advice = "Start more workers for this queue; tasks-app doctor shows what else is wrong."
    return warn("in line", fact, advice)


def _next_step(facts: TaskFacts) -> str:
    if facts.run_by is RunBy.WORK:
        return "a child takes it when it has room"  # without a scan: a child claims by itself
    messages = facts.scan.messages if facts.scan else 0
    if not messages:
        return "the next scan publishes it"
    verb = "waits" if messages == 1 else "wait"
    return f"{count(messages, 'message')} of its queue {verb} in the broker for a child with room"


def runs_exclusively(_facts: TaskFacts, row: StoredRow) -> Finding | None:
    if not (row.crashes or row.at_most_once):
        return None
    why = "it may run at most once"
    if row.crashes:
        why = f"{count(row.crashes, 'worker')} vanished while it ran"
    advice = "Nothing to do: it starts when a child has no other claimed task."
    return ok("alone", f"It is only claimed alone, because {why}", advice)


# Which row the rules are for: a task that waits, is due, or could run now.
RULES_FOR_WAITING = (
    ("waiting", (held, open_needs, disabled, expired, lock_held, not_due)),
    ("waiting", (paused, closed, gate, breaker)),
    ("due", (no_connection,)),
    ("waiting", (no_worker, no_handler, unpublished, no_scan)),
    ("due", (order_key_taken, limit_reached, locks_taken, deferred_by_scan)),
    ("ready", (in_queue, runs_exclusively)),
)
