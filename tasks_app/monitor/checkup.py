"""The check-up: runs every check; one that breaks is a finding, too."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from tasks_app.domain.finding import Finding, Level, away, fail, warn
from tasks_app.domain.settings import Settings
from tasks_app.monitor import database as database_checks
from tasks_app.monitor import locks as lock_checks
from tasks_app.monitor import schedules as schedule_checks
from tasks_app.monitor import sessions as session_checks
from tasks_app.monitor import work as work_checks
from tasks_app.monitor.database import Check
from tasks_app.runtime.database import Database
from tasks_app.runtime.reactions import is_unanswered


def examine(settings: Settings) -> list[Finding]:
    """Look at the database and at the work in it."""
    try:
        database = Database(settings.database, prepare=settings.prepare)
        try:
            findings = _run(database_checks.FIRST, database.engine, settings)
            if all(finding.level is not Level.FAIL for finding in findings):
                findings += _run(database_checks.CHECKS, database.engine, settings)
                findings += _run(session_checks.CHECKS, database.engine, settings)
                findings += _run(
                    session_checks.CHECKS_OF_HANDLERS, database.handler_engine, settings
                )
                findings += _run(work_checks.CHECKS, database.engine, settings)
                findings += _run(schedule_checks.CHECKS, database.engine, settings)
                findings += _run(lock_checks.CHECKS, database.engine, settings)
        finally:
            database.dispose()
    except ArgumentError:
        advice = "It looks like postgresql+psycopg://user:password@host/name."
        return [fail("database", "TASKS_APP_DATABASE_URL is no URL", advice)]
    except OperationalError:
        advice = "Check TASKS_APP_DATABASE_URL and that it runs."
        return [away("database", "does not answer", advice)]
    return findings


def _run(checks: Sequence[Check], engine: Engine, settings: Settings) -> list[Finding]:
    findings = []
    for check in checks:
        try:
            with engine.connect() as connection:
                findings += check(connection, settings)
        except DBAPIError as error:
            if is_unanswered(error):
                raise
            state = getattr(error.orig, "sqlstate", None)
            fact = f"could not be looked at (SQLSTATE {state})"
            findings.append(warn(check.__name__, fact, "Ask as the owner of the tables."))
    return findings
