"""Does the work get done? Live workers, waiting tasks, scans."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import count, rough, to_the_minute
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.statistics.outcomes import CountedOutcome
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.connection.row_by_row import refusals
from tasks_app.pool.dispatch import leader_lease, ledger
from tasks_app.pool.fragments.availability import standing_still
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.operations.diagnostics import DueWork
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.statistics import read
from tasks_app.pool.statistics.read import Grain, Wanted
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api.tasks import LATE_SCANS, PATIENCE

RECENT = ledger.LONGEST_WAIT + timedelta(minutes=2)
"""What another pool's worker refused comes again after at most so long, if both still share it."""
MOST_NAMED = 3
MOST_NAMES = 10
"""Of long runs, whose usual time is looked up."""
FAR, LEAST_RUNS = 4, 20
"""Times the 99th percentile, which is off by less than a factor of two; of so many runs."""
A_DAY = timedelta(days=1)


def living(connection: Connection, settings: Settings) -> list[Finding]:
    """Is a worker alive?"""
    found = heartbeats.live(connection, settings.lease)
    if not found:
        advice = "Start one: celery -A tasks_app worker -E --loglevel=info, or: tasks-app work"
        return [warn("workers", "none is alive", advice)]
    nodes = sorted({worker.node for worker in found})
    return [ok("workers", f"{count(len(found), 'child')} of {', '.join(nodes)}")]


def due_tasks(connection: Connection, settings: Settings) -> list[Finding]:
    """Ask the three below, of one reading: of 100,000 due tasks it takes a tenth of a second."""
    due = diagnostics.due_work(connection)
    return [
        finding
        for check in (reach, shared, waiting)
        for finding in check(connection, settings, due)
    ]


def reach(
    connection: Connection, settings: Settings, due: list[DueWork] | None = None
) -> list[Finding]:
    """Does a live worker know every due task?"""
    due = diagnostics.due_work(connection) if due is None else due
    found = heartbeats.live(connection, settings.lease)
    if not due and not found:
        return []
    served = {queue for worker in found for queue in worker.queues}
    known = {name for worker in found for name in worker.handlers}
    orphans = sorted({d.queue for d in due} - served)
    strangers = sorted({d.name for d in due if d.queue in served} - known)
    findings = [
        fail(
            "queues",
            f"{sum(d.number for d in due if d.queue == queue)} due in {queue}, served by no worker",
            f"Start a worker: celery -A tasks_app worker -E -Q {queue}",
        )
        for queue in orphans
    ]
    findings += [
        fail(
            "handlers",
            f"{sum(d.number for d in due if d.name == name)} due for {name}, known to no worker",
            "Name its module in the TASKS_APP_IMPORTS of a worker.",
        )
        for name in strangers
    ]
    return findings or [ok("queues", "every task that is due has a worker that knows it")]


def shared(
    connection: Connection, settings: Settings, due: list[DueWork] | None = None
) -> list[Finding]:
    """Do workers that know different handlers serve the same queue?

    A worker reports its handlers, not the queue of each: only due tasks show that some wait for
    another worker. Without any it is no warning.
    """
    due = diagnostics.due_work(connection) if due is None else due
    known: dict[str, list[set[str]]] = {}
    for worker in heartbeats.live(connection, settings.lease):
        for queue in worker.queues:
            known.setdefault(queue, []).append(set(worker.handlers))
    findings = []
    for queue, sets in sorted(known.items()):
        partly = sets[0].union(*sets) - sets[0].intersection(*sets)
        if not partly:
            continue
        waits = sorted({d.name for d in due if d.queue == queue} & partly)
        named = ", ".join((waits or sorted(partly))[:MOST_NAMED])
        fact = f"{queue} is served by workers with different handlers; not all know {named}"
        if waits:
            advice = "A task may make a detour. Give each service a queue of its own."
            findings.append(warn("queues", fact, advice))
        else:
            findings.append(ok("queues", fact))
    return findings


def waiting(
    connection: Connection, _settings: Settings, found: list[DueWork] | None = None
) -> list[Finding]:
    """How long do due tasks wait?"""
    still = standing_still(connection)
    found = diagnostics.due_work(connection) if found is None else found
    due = [] if EVERY_QUEUE in still else [d for d in found if d.queue not in still]
    if not due:
        where = ", but in queues that stand still" if found else ""
        return [ok("due tasks", f"none waits{where}")]
    number, oldest = sum(d.number for d in due), due[0]
    most = "at least " if number >= diagnostics.MOST_DUE else ""
    fact = f"{most}{number} waiting, {oldest.name} in {oldest.queue} for {rough(oldest.waits)}"
    if oldest.waits > PATIENCE:
        return [
            warn(
                "due tasks",
                fact,
                "See what runs: tasks-app list --state RUNNING. Start more workers.",
            )
        ]
    return [ok("due tasks", fact)]


def stuck(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a task wait behind one that has failed for good?"""
    found = diagnostics.behind_failed(connection)
    if not found:
        return []
    first, number = found[0], sum(each.number for each in found)
    more = f", and of {len(found) - 1} other keys" if len(found) > 1 else ""
    fact = (
        f"{number} waiting behind tasks that failed for good: order key {first.key} is held by "
        f"task {first.task_id}{more}"
    )
    advice = f"tasks-app requeue {first.task_id}, or: tasks-app unblock {first.task_id}"
    return [warn("order keys", fact, advice)]


def rescue(connection: Connection, _settings: Settings) -> list[Finding]:
    """Are the tasks of vanished workers taken back?"""
    number, since = diagnostics.beyond_lease(connection)
    if since > PATIENCE:
        fact = f"{number} running beyond the lease, for {rough(since)}"
        return [fail("rescue", fact, "Nobody scans: start beat, and read its log.")]
    return [ok("rescue", "no task runs beyond its lease")]


def slow_runs(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a run take far longer than others of its name?"""
    runs = diagnostics.long_runs(connection, PATIENCE)
    if not runs:
        return []
    names = list(dict.fromkeys(run.name for run in runs))[:MOST_NAMES]
    usual = {
        name: timedelta(milliseconds=each.ran_ms(0.99) or 0)
        for name in names
        for each in read.times(connection, Wanted(Grain.HOUR, A_DAY, name))
        if sum(each.runs) >= LEAST_RUNS
    }
    slow = [run for run in runs if run.name in usual and run.ran > FAR * usual[run.name]]
    if not slow:
        return []
    first, more = slow[0], f", and {len(slow) - 1} more" if len(slow) > 1 else ""
    fact = (
        f"task {first.id} ({first.name}) has run for {rough(first.ran)}{more}; 99 of 100 of its "
        f"name end within {rough(usual[first.name])}"
    )
    advice = f"tasks-app explain {first.id}; to stop it: tasks-app cancel {first.id}"
    return [warn("slow runs", fact, advice)]


def refused(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does the database refuse what is to be done to single rows?"""
    advice = "Remove the cause: a trigger or constraint of yours, or an id that is there twice."
    return [
        fail(
            "rows",
            f"{each.what} refused: {each.rows} ({each.why}), lately at {to_the_minute(each.at)}",
            advice,
        )
        for each in refusals(connection)
    ]


def left(connection: Connection, _settings: Settings) -> list[Finding]:
    """Did each run have an end?"""
    wanted = Wanted(Grain.HOUR, A_DAY, outcomes=(CountedOutcome.LEFT,))
    number = sum(point.number for point in read.history(connection, wanted))
    if number:
        fact = f"{count(number, 'run')} of the last day had no end, and went back"
        return [warn("runs", fact, "That is a fault of tasks_app: report it, with the log.")]
    return [ok("runs", "each of the last day has had an end")]


def scanning(connection: Connection, settings: Settings) -> list[Finding]:
    """Does anybody scan for due tasks?"""
    duty = leader_lease.read(connection, leader_lease.SCAN)
    advice = "Start beat, unless you run tasks-app work only."
    if duty is None or duty.idle is None:
        return [warn("scan", "nobody has scanned yet", advice)]
    fact = f"the last one was {rough(duty.idle)} ago, by {duty.holder}"
    if duty.idle > LATE_SCANS * settings.scan_interval + PATIENCE:
        late = any(due.waits > PATIENCE for due in diagnostics.due_work(connection))
        return [(fail if late else warn)("scan", fact, advice)]
    if duty.rank < leader_lease.Rank.BEAT:
        advice = "No beat leads: start one."
        if duty.refused_since is not None:
            advice = "A beat that cannot publish gives up the lead: see the lines on the broker."
        return [warn("scan", f"{fact}, which stands in", advice)]
    return [ok("scan", fact)]


def publishing(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does the broker take messages?"""
    duty = leader_lease.read(connection, leader_lease.SCAN)
    if duty is None or duty.refused_since is None:
        return []
    why = f": {duty.refused_because}" if duty.refused_because else ""
    fact = f"nothing could be published since {to_the_minute(duty.refused_since)}{why}"
    return [warn("broker", fact, "Tasks wait in the database. Look at the broker, and its log.")]


def strangers(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does another pool use the same broker?"""
    seen = leader_lease.strangers(connection, leader_lease.SCAN, RECENT)
    if seen is None:
        return []
    number, at = seen
    fact = f"carries messages of another pool: {number} were refused, lately at {to_the_minute(at)}"
    advice = "Give each pool a database of Redis, a global_keyprefix or a virtual host of its own."
    return [warn("broker", fact, advice)]


CHECKS: tuple[Check, ...] = (
    *(living, scanning, publishing, strangers),
    *(due_tasks, stuck, rescue, slow_runs, refused, left),
)
