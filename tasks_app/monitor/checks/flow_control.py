"""What keeps tasks from running: pauses, breakers, locks, schedules that don't fire."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import count, rough_span, to_the_minute
from tasks_app.domain.errors import TasksError
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, BreakerStanding, BreakerState
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.db_scheduler.functions import Installed
from tasks_app.pool.db_scheduler.jobs import usual_database, version
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.locks.holders import Held
from tasks_app.pool.locks.holders import find_holders as find_locks
from tasks_app.pool.retention import owns_partitions
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.scheduling import clock
from tasks_app.pool.scheduling import find as find_schedules
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.schedules.db_scheduler import DbScheduler, DbSchedulerState, sql_tasks_of


def paused(connection: Connection, _settings: Settings) -> list[Finding]:
    """Is a queue paused, and perhaps forgotten?"""
    return [
        warn("queues", _stopped(each), f"When it may go on: tasks-app resume {_given(each)}")
        for each in queue_settings.paused(connection)
    ]


def standing(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a queue wait for its window, or for other queues?"""
    findings = []
    for each in queue_settings.find(connection):
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
    """Is a dependency of tasks down, or its breaker left to nobody's judgement?"""
    found = circuit_breakers.find(connection)
    by_hand = [
        warn(
            "breakers",
            f"{each.breaker.dependency} is kept {each.mode} by hand since "
            f"{to_the_minute(each.since)}, whatever its calls come to; "
            f"{count(each.held, 'task')} held",
            f"To leave it to the outcomes again: tasks-app breakers auto {each.breaker.dependency}",
        )
        for each in found
        if each.mode is not BreakerMode.AUTO
    ]
    judged = (each for each in found if each.mode is BreakerMode.AUTO)
    return by_hand + [_judged(each) for each in judged if each.state is not BreakerState.CLOSED]


def _judged(each: BreakerStanding) -> Finding:
    name = each.breaker.dependency
    fact = (
        f"{name} is {each.state} since {to_the_minute(each.since)}"
        f"{each.reason and f': {each.reason}'}; {count(each.held, 'task')} held"
    )
    if each.state is BreakerState.OPEN:
        tries = "Some tasks are let through to try; to do so now:"
        return warn("breakers", fact, f"Look at {name}. {tries} tasks-app breakers auto {name}")
    later = f"; for those that met the outage: tasks-app run-now --retrying --name {each.names[0]}"
    if each.state is BreakerState.RAMPING:
        return ok("breakers", fact, f"Nothing to do: its tasks are let go{each.names and later}")
    if each.held:
        return warn("breakers", fact, f"Look at {name}. Some tasks are let through to try.")
    return ok("breakers", fact, "Nothing to do: the next task decides.")


def _given(each: queue_settings.Pause) -> str:
    """Return the argument; the shell would expand a bare star."""
    return "--all" if each.queue == EVERY_QUEUE else each.queue


def _stopped(each: queue_settings.Pause) -> str:
    who = "all are" if each.queue == EVERY_QUEUE else f"{each.queue} is"
    until = f" until {to_the_minute(each.resume_at)}" if each.resume_at else ""
    reason = f": {each.reason}" if each.reason else ""
    return f"{who} paused since {to_the_minute(each.since)}{until}{reason}"


CHECKS: tuple[Check, ...] = (paused, standing, dependencies)
BEYOND, LONG_WAIT = timedelta(minutes=1), timedelta(minutes=1)
MOST_LOCKS = 1_000


def held(connection: Connection, _settings: Settings) -> list[Finding]:
    """Are all leases kept, and all waits short?"""
    found = find_locks(connection, most=MOST_LOCKS)
    holding = [lock for lock in found if lock.state == "held"]
    waiting = [lock for lock in found if lock.state == "waiting" and lock.beyond < timedelta(0)]
    late = [lock for lock in holding if lock.beyond > BEYOND]
    long = [lock for lock in waiting if lock.age > LONG_WAIT]
    findings = []
    if late:
        first = max(late, key=lambda lock: lock.beyond)
        fact = f"{_named(first)} holds {first.resource} {rough_span(first.beyond)} beyond its lease"
        advice = "It is gone, or cannot renew: the next to ask gets the lock, unless a transaction "
        findings.append(warn("locks", fact + _more(late), f"{advice}guards it."))
    if long:
        first = max(long, key=lambda lock: lock.age)
        fact = f"{_named(first)} has waited for {first.resource} for {rough_span(first.age)}"
        advice = f"See who is in the way: tasks-app locks list {first.resource}"
        findings.append(warn("locks", fact + _more(long), advice))
    return findings or [ok("locks", f"{len(holding)} held, {len(waiting)} waited for")]


def _named(lock: Held) -> str:
    return f"task {lock.task_id} ({lock.who})" if lock.task_id else lock.who


def _more(locks: list[Held]) -> str:
    return f" and {len(locks) - 1} more" if len(locks) > 1 else ""


LOCK_CHECKS: tuple[Check, ...] = (held,)
SCHEDULE_PATIENCE = timedelta(minutes=1)  # A schedule that should have fired longer ago was missed


def firing(connection: Connection, settings: Settings) -> list[Finding]:
    """Is each in time, readable, and known to a worker?"""
    now = clock(connection)
    schedules = [schedule for schedule in find_schedules(connection) if schedule.enabled]
    known = {
        name for worker in heartbeats.live(connection, settings.lease) for name in worker.handlers
    }
    findings: list[Finding] = []
    for schedule in schedules:
        due = schedule.next_run_at
        if schedule.remark is not None:
            advice = f"Mend it: tasks-app schedules change {schedule.name}."
            findings.append(fail("schedules", f"{schedule.name} is broken", advice))
        elif due is not None and now - due > SCHEDULE_PATIENCE:
            fact = f"{schedule.name} should have fired {rough_span(now - due)} ago"
            by = heartbeats.run_by(connection, settings.lease)
            findings.append(fail("schedules", fact, f"Nobody scans. {by.start_scan}"))
        elif due is not None and known and schedule.task not in known:
            fact = f"{schedule.name} makes tasks of {schedule.task}, known to no worker"
            advice = "Name its module in the TASKS_APP_IMPORTS of a worker, or disable it."
            findings.append(warn("schedules", fact, advice))
    return findings or [ok("schedules", f"{len(schedules)} enabled, none is late")]


SCHEDULE_CHECKS: tuple[Check, ...] = (firing,)
DB_SCHEDULER_SUBJECT = "db-scheduler"


def db_scheduler(connection: Connection, settings: Settings) -> list[Finding]:
    """Look at what ``tasks-app db-scheduler install`` has made, if it was run."""
    made = functions.installed(connection, settings, None) is not Installed.NO
    if not made and version(connection) is None:
        return []
    if not owns_partitions(connection):
        fact = "functions and jobs are told to the owner of the tables alone"
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
    if not state.pg_cron:
        return [
            ok(
                DB_SCHEDULER_SUBJECT,
                "the functions are of this code; no pg_cron that calls them is seen",
            )
        ]
    jobs = count(len(state.jobs), "job")
    return [
        ok(
            DB_SCHEDULER_SUBJECT,
            f"{jobs} of pg_cron {state.pg_cron} and their functions are in order",
        )
    ]


def _state(settings: Settings, elsewhere: str) -> DbSchedulerState:
    """Return what is here, and the jobs of another database, if pg_cron is seen there."""
    tasks = sql_tasks_of(HANDLERS, settings, leave=True) or None
    database = Database(settings.database, prepare=settings.prepare)
    try:
        here = DbScheduler(settings, database).status(tasks)
        if here.pg_cron:
            return here
        try:
            there = DbScheduler(settings, database, elsewhere).status(tasks)
        except (TasksError, DBAPIError):  # this role may not look there
            return here
        return there if there.pg_cron else here
    finally:
        database.dispose()


DB_SCHEDULER_CHECKS: tuple[Check, ...] = (db_scheduler,)
