"""Is the work done? Live workers, due tasks, scans, and runs that are slow or lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import NAME_ITS_MODULE, count, rough_span, to_the_minute
from tasks_app.domain.errors import similar
from tasks_app.domain.explain.facts import ANOTHER_LEADS_AFTER, HEARTBEAT_TAKES, RunBy
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.error_text import storable_text
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.connection.row_by_row import refusals
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.error_groups import find_error_groups
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.fragments.conditions import stopped_queues
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.operations.diagnostics import DueWork
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.statistics import read
from tasks_app.pool.statistics.read import Grain, Wanted
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api.tasks import LATE_SCANS, PATIENCE, masked_errors
from tasks_app.runtime.handlers.registry import HANDLERS

A_DAY = timedelta(days=1)
RECENT = timedelta(minutes=12)  # two pools on one broker refuse each other's messages that often
MOST_NAMES, MOST_CAUSES, LONGEST_CAUSE = 3, 5, 120  # names of a cause, or of a queue
MOST_LONG_RUNS = 10  # names of long runs, whose usual time is read
FAR, LEAST_RUNS = 4, 20
"""Times the 99th percentile, which is off by less than a factor of two; of so many runs."""


def living(connection: Connection, settings: Settings) -> list[Finding]:
    found = heartbeats.live_workers(connection, settings.lease)
    if not found:
        advice = heartbeats.started_by(connection, settings.lease).start_worker()
        return [warn("workers", "none is alive", advice)]
    nodes = sorted({worker.node for worker in found})
    return [ok("workers", f"{count(len(found), 'child')} of {', '.join(nodes)}")]


def scanning(connection: Connection, settings: Settings) -> list[Finding]:
    """Does a process scan for due tasks?"""
    duty = leader_lease.read_lease(connection, leader_lease.SCAN)
    works = any(
        not child.of_celery for child in heartbeats.live_workers(connection, settings.lease)
    )
    if works and (duty is None or duty.free):
        return [ok("scan", "tasks-app work polls for due tasks by itself")]
    advice = heartbeats.started_by(connection, settings.lease).start_scan
    if duty is None or duty.idle is None:
        return [warn("scan", "no process has scanned yet", advice)]
    fact = f"the last one was {rough_span(duty.idle)} ago, by {duty.holder}"
    if not _is_scanned(connection, settings, duty):
        late = any(each.waits > PATIENCE for each in diagnostics.due_work(connection))
        return [(fail if late else warn)("scan", fact, advice)]
    if duty.rank == leader_lease.Rank.STANDBY:
        advice = "No beat leads: start one."
        if duty.refused_since is not None:
            advice = "A beat that cannot publish gives up the lead: read the line on publishing."
        return [warn("scan", f"{fact}, which stands in", advice)]
    return [ok("scan", fact)]


def _is_scanned(
    connection: Connection, settings: Settings, duty: leader_lease.Lease | None
) -> bool:
    """A scan is recent, and a process is left that can scan; ``explain`` decides the same."""
    alive = heartbeats.live_workers(connection, settings.renew_every + HEARTBEAT_TAKES)
    if any(not child.of_celery for child in alive):
        return True
    if duty is None or duty.idle is None:
        return False
    no_leader = duty.free and duty.idle > ANOTHER_LEADS_AFTER and not alive
    return not no_leader and duty.idle <= LATE_SCANS * settings.scan_interval + PATIENCE


def publishing(connection: Connection, settings: Settings) -> list[Finding]:
    """Does the broker take messages?"""
    duty = leader_lease.read_lease(connection, leader_lease.SCAN)
    if duty is None or duty.refused_since is None:
        return []
    if heartbeats.started_by(connection, settings.lease) is RunBy.WORK:
        return []  # the note is from the time when Celery ran here
    why = f": {duty.refused_because}" if duty.refused_because else ""
    fact = f"nothing could be published since {to_the_minute(duty.refused_since)}{why}"
    return [
        warn("publishing", fact, "Tasks wait in the database. Check the broker, and read its log.")
    ]


def strangers(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does another pool use the same broker?"""
    seen = leader_lease.recent_foreign_messages(connection, leader_lease.SCAN, RECENT)
    if seen is None:
        return []
    number, at = seen
    fact = (
        f"carries messages of another pool: {number} were refused, the last at {to_the_minute(at)}"
    )
    advice = "Give each pool a database of Redis, a global_keyprefix or a virtual host of its own."
    return [warn("broker", fact, advice)]


def due_tasks(connection: Connection, settings: Settings) -> list[Finding]:
    """Run four checks on one reading: of 100,000 due tasks it takes a tenth of a second."""
    due = diagnostics.due_work(connection)
    return [
        *reach(connection, settings, due),
        *elsewhere(connection, due),
        *shared(connection, settings, due),
        *waiting(connection, settings, due),
    ]


def reach(connection: Connection, settings: Settings, due: list[DueWork]) -> list[Finding]:
    """Does a live worker of its queue know every due task?"""
    known = heartbeats.handlers_by_queue(connection, settings.lease)
    if not due and not known:
        return []
    by = heartbeats.started_by(connection, settings.lease)
    findings = [
        fail(
            "queues",
            f"{sum(d.number for d in due if d.queue == queue)} due in {queue}, served by no worker",
            by.start_worker(queue),
        )
        for queue in sorted({d.queue for d in due} - known.keys())
    ]
    all_names = set().union(*known.values())
    for each in sorted(due, key=lambda each: (each.name, each.queue)):
        if each.queue not in known or each.name in known[each.queue]:
            continue
        where = sorted(queue for queue, names in known.items() if each.name in names)
        fact = f"{each.number} due for {each.name}"
        if where:
            fact += f" in {each.queue}, whose workers do not know it"
            advice = f"Workers of {', '.join(where)} do: one of them must serve {each.queue}, too."
        else:
            fact += f", known to no worker{similar(each.name, all_names)}"
            advice = f"{NAME_ITS_MODULE}."
        findings.append(fail("handlers", fact, advice))
    return findings or [ok("queues", "every task that is due has a worker that knows it")]


def elsewhere(connection: Connection, due: list[DueWork]) -> list[Finding]:
    """Do tasks wait in another queue than their handler's, so that its pause does not hold them?

    A producer may want that, or it did not know the handler, as SQL does not.
    """
    still = stopped_queues(connection)
    findings = []
    for each in due:
        spec = HANDLERS.get(each.name)
        if spec is None or spec.queue == each.queue:
            continue
        fact = f"{each.number} due for {each.name} in {each.queue}, its handler's is {spec.queue}"
        advice = (
            "Unless you want that, give queue= where they are created by name, and: tasks-app move "
            f"--name {each.name} --queue {each.queue} --to {spec.queue}"
        )
        passes = spec.queue in still and each.queue not in still and EVERY_QUEUE not in still
        fact += ", which stands still" if passes else ""
        findings.append((warn if passes else ok)("queues", fact, advice))
    return findings


def shared(connection: Connection, settings: Settings, due: list[DueWork]) -> list[Finding]:
    """Do workers that know different handlers serve the same queue?

    A worker reports its handlers, not the queue of each: only due tasks show that some wait for
    another worker. Without any it is not a warning.
    """
    known: dict[str, list[set[str]]] = {}
    for worker in heartbeats.live_workers(connection, settings.lease):
        for queue in worker.queues:
            known.setdefault(queue, []).append(set(worker.handlers))
    findings = []
    for queue, sets in sorted(known.items()):
        partly = sets[0].union(*sets) - sets[0].intersection(*sets)
        if not partly:
            continue
        waits = sorted({d.name for d in due if d.queue == queue} & partly)
        named = ", ".join((waits or sorted(partly))[:MOST_NAMES])
        fact = f"{queue} is served by workers with different handlers; not all know {named}"
        if waits:
            advice = "A task may make a detour. Give each service a queue of its own."
            findings.append(warn("queues", fact, advice))
        else:
            findings.append(ok("queues", fact))
    return findings


def waiting(connection: Connection, settings: Settings, found: list[DueWork]) -> list[Finding]:
    """How long do due tasks wait that could run?"""
    runs = what_runs(connection, settings)
    due = [each for each in found if runs(each.queue, each.name)]
    if not due:
        where = " that could run" if found else ""
        return [ok("due tasks", f"none waits{where}")]
    number, oldest = sum(d.number for d in due), due[0]
    most = "at least " if number >= diagnostics.MOST_DUE else ""
    fact = f"{most}{number} waiting, {oldest.name} in {oldest.queue} for {rough_span(oldest.waits)}"
    if oldest.waits > PATIENCE:
        advice = "Start more workers. To see what runs: tasks-app list --state RUNNING"
        return [warn("due tasks", fact, advice)]
    return [ok("due tasks", fact)]


def what_runs(connection: Connection, settings: Settings) -> Callable[[str, str], bool]:
    """Return whether a task of this queue and name could run now, if it is due.

    Not in a queue that stands still, nor behind a breaker, nor if no live worker knows it.
    """
    still = stopped_queues(connection)
    known = heartbeats.handlers_by_queue(connection, settings.lease)
    down = {
        name
        for each in circuit_breakers.find_breakers(connection)
        if each.state is not BreakerState.CLOSED
        for name in each.names
    }

    def runs(queue: str, name: str) -> bool:
        stands = EVERY_QUEUE in still or queue in still or name in down
        return not stands and name in known.get(queue, ())

    return runs


def stuck(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a task wait behind one that has failed for good?"""
    found = diagnostics.blocked_by_failed(connection)
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


def rescue(connection: Connection, settings: Settings) -> list[Finding]:
    """Are the tasks of vanished workers rescued?"""
    number, since = diagnostics.expired_leases(connection)
    if not number:
        return [ok("rescue", "no task runs beyond its lease")]
    fact = f"{number} running beyond the lease, for {rough_span(since)}"
    if not _is_scanned(
        connection, settings, leader_lease.read_lease(connection, leader_lease.SCAN)
    ):
        by = heartbeats.started_by(connection, settings.lease)
        return [fail("rescue", fact, f"No scan has rescued them. {by.start_scan}")]
    stay = "; if they stay, read the log of the process that scans" if since > PATIENCE else ""
    return [warn("rescue", fact, f"Nothing to do: the next scan rescues them{stay}.")]


def slow_runs(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a run take far longer than others of its name?"""
    runs = diagnostics.long_runs(connection, PATIENCE)
    names = list(dict.fromkeys(run.name for run in runs))[:MOST_LONG_RUNS]
    usual = {
        name: timedelta(milliseconds=each.ran_ms(0.99) or 0)
        for name in names
        for each in read.run_histograms(connection, Wanted(Grain.HOUR, A_DAY, name))
        if sum(each.runs) >= LEAST_RUNS
    }
    slow = [run for run in runs if run.name in usual and run.ran > FAR * usual[run.name]]
    if not slow:
        return []
    first, more = slow[0], f", and {len(slow) - 1} more" if len(slow) > 1 else ""
    fact = (
        f"task {first.id} ({first.name}) has run for {rough_span(first.ran)}{more}; 99 of 100 "
        f"of its name end within {rough_span(usual[first.name])}"
    )
    advice = f"tasks-app explain {first.id}; to stop it: tasks-app cancel {first.id}"
    return [warn("slow runs", fact, advice)]


def refused(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does the database refuse changes of single rows?"""
    advice = "Remove the cause: a trigger or constraint of yours, or an id that is there twice."
    return [
        fail(
            "rows",
            f"{each.what} refused: {each.rows} ({each.why}), the last at {to_the_minute(each.at)}",
            advice,
        )
        for each in refusals(connection)
    ]


def left(connection: Connection, _settings: Settings) -> list[Finding]:
    """Did each run end?"""
    wanted = Wanted(Grain.HOUR, A_DAY, outcomes=(CountedOutcome.LEFT,))
    number = sum(point.number for point in read.history(connection, wanted))
    if number:
        fact = f"{count(number, 'run')} of the last day had no end, and went back"
        return [warn("runs", fact, "That is a bug of tasks_app: report it, with the log.")]
    return [ok("runs", "each run of the last day has ended")]


CHECKS: tuple[Check, ...] = (
    *(living, scanning, publishing, strangers, due_tasks, stuck, rescue),
    *(slow_runs, refused, left),
)


def failed(connection: Connection, _settings: Settings) -> list[Finding]:
    """By which causes did tasks fail for good? Not on Overview, which lists the causes itself."""
    groups = find_error_groups(connection, most=MOST_CAUSES + 1)
    causes = masked_errors(connection, groups, by="sample_id")
    if not causes:
        return [ok("failed", "no task is in the error pool, or none that has a cause")]
    findings = [
        (ok if each.known_by else warn)(
            "failed",
            f"{each.number} of {', '.join(each.names[:MOST_NAMES])}: "
            + storable_text(next(iter(each.error.splitlines()), "without a text"), LONGEST_CAUSE),
            f"To see it: tasks-app errors show {each.fingerprint}",
        )
        for each in causes[:MOST_CAUSES]
    ]
    if len(causes) > MOST_CAUSES:
        findings.append(warn("failed", "more causes", "To see all: tasks-app errors"))
    return findings
