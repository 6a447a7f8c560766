"""Where the database is the scheduler: do jobs call its functions, and are these of this code?"""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import TasksError
from tasks_app.domain.explain.words import count
from tasks_app.domain.finding import Finding, ok, warn
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.db_scheduler.functions import Installed
from tasks_app.pool.db_scheduler.jobs import usual_database, version
from tasks_app.pool.retention.partitions import owns
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.schedules.db_scheduler import DbScheduler, DbSchedulerState
from tasks_app.runtime.schedules.sql_tasks import sql_tasks_of

SUBJECT = "db-scheduler"


def db_scheduler(connection: Connection, settings: Settings) -> list[Finding]:
    """Look at what ``tasks-app db-scheduler install`` has made, if it was run."""
    made = functions.installed(connection, settings, None) is not Installed.NO
    if not made and version(connection) is None:
        return []
    if not owns(connection):
        fact = "functions and jobs are told to the owner of the tables alone"
        return [ok(SUBJECT, fact)] if made else []
    state = _state(settings, usual_database(connection))
    findings = []
    for line in state.trouble:
        fact, _, advice = line.rpartition(". ")
        findings.append(warn(SUBJECT, fact[:1].lower() + fact[1:], advice))
    if made and state.pg_cron and not state.jobs:
        advice = "Run again: tasks-app db-scheduler install, unless something else calls them."
        findings.append(warn(SUBJECT, "no job of pg_cron calls the functions", advice))
    if findings or not made:
        return findings
    if not state.pg_cron:
        return [ok(SUBJECT, "the functions are of this code; no pg_cron that calls them is seen")]
    jobs = count(len(state.jobs), "job")
    return [ok(SUBJECT, f"{jobs} of pg_cron {state.pg_cron} and their functions are in order")]


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


CHECKS: tuple[Check, ...] = (db_scheduler,)
