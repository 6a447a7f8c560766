"""The check-up: runs every check; one that breaks is a finding, too."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.domain.finding import Finding, Level, away, fail, warn
from tasks_app.monitor import database as database_checks
from tasks_app.monitor import locks as lock_checks
from tasks_app.monitor import schedules as schedule_checks
from tasks_app.monitor import sessions as session_checks
from tasks_app.monitor import work as work_checks
from tasks_app.monitor.database import Check
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_unanswered, sqlstate


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
    except (OperationalError, ProgrammingError) as error:
        why = why_unreachable(str(error.orig))
        return [(away if why.away else fail)("database", why.fact, why.advice)]
    return findings


def _run(checks: Sequence[Check], engine: Engine, settings: Settings) -> list[Finding]:
    findings = []
    for check in checks:
        try:
            with engine.connect() as connection:
                findings += check(connection, settings)
        except DBAPIError as error:
            state = sqlstate(error)
            if is_unanswered(error) or not state:
                raise
            fact = f"could not be looked at (SQLSTATE {state})"
            findings.append(warn(check.__name__, fact, "Ask as the owner of the tables."))
    return findings
