"""Does the work get done? Live workers, waiting tasks, scans."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.facts import ANOTHER_LEADS_AFTER, HEARTBEAT_TAKES
from tasks_app.domain.explain.run_by import RunBy
from tasks_app.domain.explain.words import count, rough, to_the_minute
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.tasks.error_text import clean
from tasks_app.monitor.checks import due, runs
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.error_groups import groups
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.api.tasks import LATE_SCANS, PATIENCE
from tasks_app.runtime.encryption.older_texts import masked_errors

RECENT = timedelta(minutes=12)
"""Whoever shares a broker with another pool refuses one of its messages within that time."""
MOST_NAMED, MOST_CAUSES, LONGEST_CAUSE = 3, 5, 120


def living(connection: Connection, settings: Settings) -> list[Finding]:
    """Is a worker alive?"""
    found = heartbeats.live(connection, settings.lease)
    if not found:
        advice = heartbeats.run_by(connection, settings.lease).start_worker()
        return [warn("workers", "none is alive", advice)]
    nodes = sorted({worker.node for worker in found})
    return [ok("workers", f"{count(len(found), 'child')} of {', '.join(nodes)}")]


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


def rescue(connection: Connection, settings: Settings) -> list[Finding]:
    """Are the tasks of vanished workers taken back?"""
    number, since = diagnostics.beyond_lease(connection)
    if not number:
        return [ok("rescue", "no task runs beyond its lease")]
    fact = f"{number} running beyond the lease, for {rough(since)}"
    if not _is_scanned(connection, settings, leader_lease.read(connection, leader_lease.SCAN)):
        by = heartbeats.run_by(connection, settings.lease)
        return [fail("rescue", fact, f"No scan has taken them back. {by.start_scan}")]
    stay = "; if they stay, read the log of who scans" if since > PATIENCE else ""
    return [warn("rescue", fact, f"Nothing to do: the next scan takes them back{stay}.")]


def _is_scanned(
    connection: Connection, settings: Settings, duty: leader_lease.Lease | None
) -> bool:
    """Whether somebody has scanned lately, and is left to do so again; explain says the same."""
    heard = heartbeats.live(connection, settings.renew_every + HEARTBEAT_TAKES)
    if any(not child.of_celery for child in heard):
        return True
    if duty is None or duty.idle is None:
        return False
    deserted = duty.free and duty.idle > ANOTHER_LEADS_AFTER and not heard
    return not deserted and duty.idle <= LATE_SCANS * settings.scan_interval + PATIENCE


def scanning(connection: Connection, settings: Settings) -> list[Finding]:
    """Does anybody scan for due tasks?"""
    duty = leader_lease.read(connection, leader_lease.SCAN)
    works = any(not child.of_celery for child in heartbeats.live(connection, settings.lease))
    if works and (duty is None or duty.free):
        return [ok("scan", "tasks-app work looks for due tasks by itself")]
    advice = heartbeats.run_by(connection, settings.lease).start_scan
    if duty is None or duty.idle is None:
        return [warn("scan", "nobody has scanned yet", advice)]
    fact = f"the last one was {rough(duty.idle)} ago, by {duty.holder}"
    if not _is_scanned(connection, settings, duty):
        late = any(each.waits > PATIENCE for each in diagnostics.due_work(connection))
        return [(fail if late else warn)("scan", fact, advice)]
    if duty.rank == leader_lease.Rank.STANDBY:
        advice = "No beat leads: start one."
        if duty.refused_since is not None:
            advice = "A beat that cannot publish gives up the lead: see what is said of publishing."
        return [warn("scan", f"{fact}, which stands in", advice)]
    return [ok("scan", fact)]


def publishing(connection: Connection, settings: Settings) -> list[Finding]:
    """Does the broker take messages?"""
    duty = leader_lease.read(connection, leader_lease.SCAN)
    if duty is None or duty.refused_since is None:
        return []
    if heartbeats.run_by(connection, settings.lease) is RunBy.WORK:
        return []  # what is noted there is of another time
    why = f": {duty.refused_because}" if duty.refused_because else ""
    fact = f"nothing could be published since {to_the_minute(duty.refused_since)}{why}"
    return [
        warn("publishing", fact, "Tasks wait in the database. Look at the broker, and its log.")
    ]


def strangers(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does another pool use the same broker?"""
    seen = leader_lease.strangers(connection, leader_lease.SCAN, RECENT)
    if seen is None:
        return []
    number, at = seen
    fact = f"carries messages of another pool: {number} were refused, lately at {to_the_minute(at)}"
    advice = "Give each pool a database of Redis, a global_keyprefix or a virtual host of its own."
    return [warn("broker", fact, advice)]


def failed(connection: Connection, _settings: Settings) -> list[Finding]:
    """By which causes did tasks fail for good?"""
    causes = masked_errors(connection, groups(connection, most=MOST_CAUSES + 1), by="sample_id")
    if not causes:
        return [ok("failed", "no task is in the error pool, or none that has a cause")]
    findings = [
        (ok if each.known_by else warn)(
            "failed",
            f"{each.number} of {', '.join(each.names[:MOST_NAMED])}: "
            f"{clean(next(iter(each.error.splitlines()), 'without a text'), LONGEST_CAUSE)}",
            f"See: tasks-app errors show {each.fingerprint}",
        )
        for each in causes[:MOST_CAUSES]
    ]
    if len(causes) > MOST_CAUSES:
        findings.append(warn("failed", "more causes", "All of them: tasks-app errors"))
    return findings


FAILED: tuple[Check, ...] = (failed,)
"""Not on Overview, which has a list of its own."""
CHECKS: tuple[Check, ...] = (
    *(living, scanning, publishing, strangers),
    *(due.due_tasks, stuck, rescue, *runs.CHECKS),
)
