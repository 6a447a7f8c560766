"""All checks of ``doctor`` on the database; one that breaks is a finding, too."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.domain.explain.facts import RunBy
from tasks_app.domain.finding import Finding, Level, away, fail, warn
from tasks_app.monitor.checks import database as connection_checks
from tasks_app.monitor.checks import database as database_checks
from tasks_app.monitor.checks import database as encryption_checks
from tasks_app.monitor.checks import database as session_checks
from tasks_app.monitor.checks import flow_control as db_scheduler_checks
from tasks_app.monitor.checks import flow_control as flow_checks
from tasks_app.monitor.checks import flow_control as lock_checks
from tasks_app.monitor.checks import flow_control as schedule_checks
from tasks_app.monitor.checks import work as work_checks
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_unanswered, sqlstate


def examine(settings: Settings) -> list[Finding]:
    """Check the database and the work in it; away if it does not answer."""
    try:
        database = Database(settings.database, prepare=settings.prepare)
        try:
            findings = run_checks(database_checks.FIRST, database.engine, settings)
            if all(finding.level is not Level.FAIL for finding in findings):
                for checks, engine in (
                    (database_checks.CHECKS, database.engine),
                    (connection_checks.CONNECTION_CHECKS, database.engine),
                    (session_checks.SESSION_CHECKS, database.engine),
                    (session_checks.HANDLER_SESSION_CHECKS, database.handler_engine),
                    (work_checks.CHECKS, database.engine),
                    (work_checks.FAILED, database.engine),
                    (flow_checks.CHECKS, database.engine),
                    (schedule_checks.SCHEDULE_CHECKS, database.engine),
                    (db_scheduler_checks.DB_SCHEDULER_CHECKS, database.engine),
                    (lock_checks.LOCK_CHECKS, database.engine),
                    (encryption_checks.KEY_CHECKS, database.engine),
                ):
                    findings += run_checks(checks, engine, settings)
        finally:
            database.dispose()
    except (OperationalError, ProgrammingError) as error:
        why = why_unreachable(str(error.orig))
        return [(away if why.away else fail)("database", why.fact, why.advice)]
    return findings


def what_runs_here(settings: Settings) -> RunBy:
    """Return what carries out tasks in this pool; ``EITHER`` if it cannot be asked."""
    try:
        database = Database(settings.database, prepare=settings.prepare)
        try:
            with database.begin() as connection:
                return heartbeats.run_by(connection, settings.lease)
        finally:
            database.dispose()
    except SQLAlchemyError:
        return RunBy.EITHER


def run_checks(checks: Sequence[Check], engine: Engine, settings: Settings) -> list[Finding]:
    """Run each in a transaction of its own; a forbidden one becomes a warning.

    Raises:
        DBAPIError: the database did not answer.
    """
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
