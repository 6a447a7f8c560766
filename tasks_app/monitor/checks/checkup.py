"""All checks of ``doctor`` on the database; one that breaks is a finding, too."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.domain.explain.facts import RunBy
from tasks_app.domain.finding import Finding, Level, away, fail, warn
from tasks_app.monitor.checks import database, flow_control, work
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_unanswered, sqlstate

_AFTER_SESSIONS: tuple[Check, ...] = (
    *(*work.CHECKS, work.failed),
    *(*flow_control.CHECKS, flow_control.db_scheduler, flow_control.held),
    database.keys,
)


def examine(settings: Settings) -> list[Finding]:
    """Check the database and the work in it; away if it does not answer."""
    try:
        pool = Database(settings.database, prepare=settings.prepare)
        try:
            findings = run_checks(database.FIRST, pool.engine, settings)
            if all(finding.level is not Level.FAIL for finding in findings):
                findings += run_checks(database.CHECKS, pool.engine, settings)
                findings += run_checks(
                    database.HANDLER_SESSION_CHECKS, pool.handler_engine, settings
                )
                findings += run_checks(_AFTER_SESSIONS, pool.engine, settings)
        finally:
            pool.dispose()
    except (OperationalError, ProgrammingError) as error:
        why = why_unreachable(str(error.orig))
        return [(away if why.away else fail)("database", why.fact, why.advice)]
    return findings


def what_runs_here(settings: Settings) -> RunBy:
    """Return what carries out tasks in this pool; ``EITHER`` if the database does not answer."""
    try:
        pool = Database(settings.database, prepare=settings.prepare)
        try:
            with pool.begin() as connection:
                return heartbeats.started_by(connection, settings.lease)
        finally:
            pool.dispose()
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
            fact = f"could not be checked (SQLSTATE {state})"
            findings.append(warn(check.__name__, fact, "Check as the owner of the tables."))
    return findings
