"""What keeps tasks from running: pauses, breakers, locks, schedules that don't fire."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import count, rough_span, to_the_minute
from tasks_app.domain.errors import TasksError
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, BreakerState, StoredBreaker
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.db_scheduler.functions import Installed
from tasks_app.pool.db_scheduler.jobs import usual_database, version
from tasks_app.pool.events import count_waits
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.flows import count_open
from tasks_app.pool.locks.holders import Held, find_holders
from tasks_app.pool.retention import owns_partitions
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.scheduling import find as find_schedules
from tasks_app.pool.tables import EVERY_QUEUE, database_now
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.schedules.db_scheduler import DbScheduler, DbSchedulerState, sql_tasks_of


def paused(connection: Connection, _settings: Settings) -> list[Finding]:
    findings = []
    for each in queue_settings.find_pauses(connection):
        every = each.queue == EVERY_QUEUE
        until = f" until {to_the_minute(each.resume_at)}" if each.resume_at else ""
        reason = f": {each.reason}" if each.reason else ""
        fact = (
            f"{'all are' if every else f'{each.queue} is'} paused since "
            f"{to_the_minute(each.since)}{until}{reason}"
        )
        # A bare star would be expanded by the shell.
        advice = f"To resume: tasks-app resume {'--all' if every else each.queue}"
        findings.append(warn("queues", fact, advice))
    return findings


def standing(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a queue wait for its window, or for other queues?"""
    findings = []
    for each in queue_settings.find_queues(connection):
        opens_at = each.opens_at
        if not each.is_open and opens_at is None:
            advice = f"Change them: tasks-app queues set {each.queue} --window …"
            fact = f"{each.queue} is closed: none of its windows opens within a year"
            findings.append(warn("queues", fact, advice))
        elif opens_at is not None:
            findings.append(ok("queues", f"{each.queue} is closed until {to_the_minute(opens_at)}"))
        elif each.shut is not None:
            fact = f"{each.queue} gives way: it runs only while {each.gate}"
            findings.append(ok("queues", fact))
    return findings


def dependencies(connection: Connection, _settings: Settings) -> list[Finding]:
    """Is a breaker kept by an operator, or not closed?"""
    found = circuit_breakers.find_breakers(connection)
    by_hand = [
        warn(
            "breakers",
            f"{each.breaker.dependency} is kept {each.mode} by hand since "
            f"{to_the_minute(each.since)}, regardless of outcomes; "
            f"{count(each.held, 'task')} held",
            f"To leave it to the outcomes again: tasks-app breakers auto {each.breaker.dependency}",
        )
        for each in found
        if each.mode is not BreakerMode.AUTO
    ]
    auto = (each for each in found if each.mode is BreakerMode.AUTO)
    return by_hand + [_not_closed(each) for each in auto if each.state is not BreakerState.CLOSED]


def _not_closed(each: StoredBreaker) -> Finding:
    name = each.breaker.dependency
    fact = (
        f"{name} is {each.state} since {to_the_minute(each.since)}"
        f"{each.reason and f': {each.reason}'}; {count(each.held, 'task')} held"
    )
    if each.state is BreakerState.OPEN:
        probes = f"Check {name}. Some tasks probe it; to probe now: tasks-app breakers auto {name}"
        return warn("breakers", fact, probes)
    if each.state is BreakerState.RAMPING:
        advice = "Nothing to do: its tasks are released"
        if each.names:
            advice += "; to retry now those that met the outage: tasks-app run-now --retrying "
            advice += f"--name {each.names[0]}"
        return ok("breakers", fact, advice)
    if each.held:
        return warn("breakers", fact, f"Check {name}. Some tasks probe it.")
    return ok("breakers", fact, "Nothing to do: the next task decides.")


SCHEDULE_PATIENCE = timedelta(minutes=1)  # one that should have fired longer ago was missed


def firing(connection: Connection, settings: Settings) -> list[Finding]:
    """Is each schedule in time, readable, and its task known to a worker?"""
    now = database_now(connection)
    schedules = [schedule for schedule in find_schedules(connection) if schedule.enabled]
    known = {
        name
        for worker in heartbeats.live_workers(connection, settings.lease)
        for name in worker.handlers
    }
    findings: list[Finding] = []
    for schedule in schedules:
        due = schedule.next_run_at
        if schedule.remark is not None:
            advice = f"Fix it: tasks-app schedules change {schedule.name}."
            findings.append(fail("schedules", f"{schedule.name} is broken", advice))
        elif due is not None and now - due > SCHEDULE_PATIENCE:
            fact = f"{schedule.name} should have fired {rough_span(now - due)} ago"
            by = heartbeats.started_by(connection, settings.lease)
            findings.append(fail("schedules", fact, f"No process scans. {by.start_scan}"))
        elif due is not None and known and schedule.task not in known:
            fact = f"{schedule.name} creates tasks of {schedule.task}, which no worker knows"
            advice = "Name its module in the TASKS_APP_IMPORTS of a worker, or disable it."
            findings.append(warn("schedules", fact, advice))
    return findings or [ok("schedules", f"{len(schedules)} enabled, none is late")]


def flows(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does each open flow go on?"""
    number = count_open(connection)
    if not number["stalled"]:
        return [ok("flows", f"{number['running']} run, none stands")] if number["running"] else []
    stand = "flow stands" if number["stalled"] == 1 else "flows stand"
    fact = f"{number['stalled']} {stand} because a step failed"
    return [warn("flows", fact, "To see them: tasks-app flows list --state stalled")]


def events(connection: Connection, _settings: Settings) -> list[Finding]:
    """How many tasks wait for events, and how long the first of them has?"""
    waits = count_waits(connection)
    if waits.oldest is None:
        return []
    number = f"{count(waits.number, 'task')} {'waits' if waits.number == 1 else 'wait'} for events"
    return [ok("events", f"{number}, the oldest for {rough_span(waits.oldest)}")]


CHECKS: tuple[Check, ...] = (paused, standing, dependencies, firing, flows, events)
DB_SCHEDULER_SUBJECT = "db-scheduler"


def db_scheduler(connection: Connection, settings: Settings) -> list[Finding]:
    """Check what ``tasks-app db-scheduler install`` has made, if it was run."""
    made = functions.installed(connection, settings, None) is not Installed.NO
    if not made and version(connection) is None:
        return []
    if not owns_partitions(connection):
        fact = "only the owner of the tables sees functions and jobs"
        return [ok(DB_SCHEDULER_SUBJECT, fact)] if made else []
    state = _state(settings, usual_database(connection))
    findings = []
    for line in state.trouble:
        fact, _, advice = line.rpartition(". ")
        findings.append(warn(DB_SCHEDULER_SUBJECT, fact[:1].lower() + fact[1:], advice))
    if made and state.pg_cron and not state.jobs:
        advice = "Run again: tasks-app db-scheduler install, unless something else calls them."
        findings.append(warn(DB_SCHEDULER_SUBJECT, "no job of pg_cron calls the functions", advice))
    if findings or not made:
        return findings
    fact = "the functions are of this code; no pg_cron that calls them is visible"
    if state.pg_cron:
        jobs = count(len(state.jobs), "job")
        fact = f"{jobs} of pg_cron {state.pg_cron} and their functions are in order"
    return [ok(DB_SCHEDULER_SUBJECT, fact)]


def _state(settings: Settings, elsewhere: str) -> DbSchedulerState:
    """Return what is here, and the jobs of another database, if pg_cron is visible there."""
    tasks = sql_tasks_of(HANDLERS, settings, leave=True) or None
    database = Database(settings.database, prepare=settings.prepare)
    try:
        here = DbScheduler(settings, database).status(tasks)
        if here.pg_cron:
            return here
        try:
            there = DbScheduler(settings, database, elsewhere).status(tasks)
        except (TasksError, DBAPIError):  # this role may not connect there
            return here
        return there if there.pg_cron else here
    finally:
        database.dispose()


BEYOND, LONG_WAIT = timedelta(minutes=1), timedelta(minutes=1)
MOST_LOCKS = 1_000


def held(connection: Connection, _settings: Settings) -> list[Finding]:
    """Are all leases of locks renewed, and all waits short?"""
    found = find_holders(connection, most=MOST_LOCKS)
    holding = [lock for lock in found if lock.state == "held"]
    waiting = [lock for lock in found if lock.state == "waiting" and lock.beyond < timedelta(0)]
    waiting = [lock for lock in waiting if not lock.over]
    late = [lock for lock in holding if lock.beyond > BEYOND]
    long = [lock for lock in waiting if lock.age > LONG_WAIT]
    findings = []
    if late:
        first = max(late, key=lambda lock: lock.beyond)
        fact = f"{_named(first)} holds {first.resource} {rough_span(first.beyond)} beyond its lease"
        advice = (
            "It vanished, or cannot renew: the next request gets the lock, unless a transaction "
            "guards it."
        )
        findings.append(warn("locks", fact + _more(late), advice))
    if long:
        first = max(long, key=lambda lock: lock.age)
        fact = f"{_named(first)} has waited for {first.resource} for {rough_span(first.age)}"
        advice = f"To see who blocks it: tasks-app locks list {first.resource}"
        findings.append(warn("locks", fact + _more(long), advice))
    return findings or [ok("locks", f"{len(holding)} held, {len(waiting)} waited for")]


def _named(lock: Held) -> str:
    return f"task {lock.task_id} ({lock.who})" if lock.task_id else lock.who


def _more(locks: list[Held]) -> str:
    return f" and {len(locks) - 1} more" if len(locks) > 1 else ""
