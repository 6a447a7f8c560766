"""What must be right before a worker or beat starts; otherwise it ends with one sentence."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any

from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, ProgrammingError

from tasks_app.broker import internals
from tasks_app.broker.checks import examine_access
from tasks_app.broker.guard.other_pools import learn_own_name
from tasks_app.domain.config.refusals import MAY_NOT, NOT_GRANTED
from tasks_app.domain.config.setting_sources import unknown_variables
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.domain.errors import (
    AWAY,
    NO,
    USAGE,
    ConfigurationError,
    PublishError,
    SchemaError,
    TasksError,
)
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.operations.grants import check_may_run
from tasks_app.pool.schema import check_schema
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import sqlstate
from tasks_app.runtime.flow_control.breakers import enter_breakers
from tasks_app.runtime.handler_db import driver_internals
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.schedules.declared import synchronise

log = quiet_logger(__name__)


class RefusedStart(SystemExit):
    """The end of a command with one sentence and an exit code of ours, not Python's 1."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(status)
        self.message = message
        sys.stderr.write(f"{message}\n")

    def __str__(self) -> str:
        return self.message


def ends_the_process(receiver: Callable[..., None]) -> Callable[..., None]:
    """Let an error in a signal's receiver end the process; Celery would log it and go on."""

    @functools.wraps(receiver)
    def strict(*args: Any, **kwargs: Any) -> None:
        try:
            receiver(*args, **kwargs)
        except TasksError as error:
            raise refused_start(error) from None
        except Exception as error:
            traceback.print_exc()
            raise SystemExit(1) from error

    return strict


def refused_start(error: TasksError) -> RefusedStart:
    """Return the end of the command for this error."""
    match error:
        case SchemaError():
            return RefusedStart(str(error), NO)
        case PublishError():
            return RefusedStart(str(error), AWAY)
        case _:
            return RefusedStart(str(error), USAGE)


def check_surroundings(app: Celery, settings: Settings) -> None:
    """Pass if a broker is configured and the database fits; else end with one sentence."""
    if not (app.conf.broker_url or app.conf.broker_read_url):
        try:
            _ = settings.broker  # Celery would try its own default, for ever
        except ConfigurationError as error:
            raise refused_start(error) from None
    if not {"json", "application/json"} & set(app.conf.accept_content):
        raise RefusedStart(
            "accept_content leaves out json, and our messages are JSON. "
            "Put json into it, or take it out of celeryconfig.py.",
            USAGE,
        )
    for sentence in (*internals.said_at_start(), *driver_internals.said_at_start()):
        log.warning(sentence)
    for finding in unknown_variables():
        log.warning("%s. %s", finding.fact, finding.advice)
    for finding in examine_access(app):
        log.warning("The broker %s. %s", finding.fact, finding.advice)
    check_database(settings)


def _enter_declared(connection: Connection) -> None:
    synchronise(connection, HANDLERS)
    enter_breakers(connection, HANDLERS)


def check_database(settings: Settings) -> None:
    """Pass if the database answers and has our schema; else end the process with one sentence.

    It is the only connection that a parent ever opens, and is closed before anything forks.
    """
    try:
        database = Database(settings.database, prepare=settings.prepare)
        try:
            with database.begin() as connection:
                notice = check_schema(connection)
                _enter_declared(connection)
                check_may_run(connection, logs=settings.transitions != "off")
                off = diagnostics.server(connection).forgetful
                learn_own_name(connection)
        finally:
            database.dispose()
    except (ConfigurationError, SchemaError) as error:
        raise refused_start(error) from None
    except (OperationalError, ProgrammingError) as error:
        why = why_unreachable(str(error.orig))
        if not sqlstate(error) and not why.away:
            raise RefusedStart(str(why), USAGE) from None
        if sqlstate(error) == NOT_GRANTED:
            raise RefusedStart(MAY_NOT, NO) from None
        if isinstance(error, ProgrammingError):
            raise  # only its traceback can tell
        said = f"The database did not do it ({brief(error)}). Try again."
        raise RefusedStart(said if sqlstate(error) else str(why), AWAY) from None
    if notice:
        log.warning(notice)
    if off:
        log.warning(
            "The database has %s = off: a crash of the server loses committed tasks, or runs them "
            "twice. Set it on.",
            ", ".join(off),
        )
