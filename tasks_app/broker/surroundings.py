"""What must be right before a worker or beat starts; else it ends with one sentence."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

from celery import Celery
from sqlalchemy.exc import ArgumentError, OperationalError

from tasks_app.broker import internals
from tasks_app.broker.checkup import examine_access
from tasks_app.broker.strangers import learn_own_name
from tasks_app.domain.errors import ConfigurationError, SchemaError, TasksError
from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.settings import Settings
from tasks_app.pool import condition
from tasks_app.pool.schema import check_schema
from tasks_app.runtime import driver_internals
from tasks_app.runtime.database import Database
from tasks_app.runtime.declared import synchronise
from tasks_app.runtime.registry import HANDLERS

log = quiet_logger(__name__)


def ends_the_process(receiver: Callable[..., None]) -> Callable[..., None]:
    """Let what a signal's receiver raises end the process; Celery would log it and go on."""

    @functools.wraps(receiver)
    def strict(*args: Any, **kwargs: Any) -> None:
        try:
            receiver(*args, **kwargs)
        except TasksError as error:
            raise SystemExit(str(error)) from None
        except Exception as error:
            traceback.print_exc()
            raise SystemExit(1) from error

    return strict


def check_surroundings(app: Celery, settings: Settings) -> None:
    """Pass if a broker is configured and the database is ours; else end with one sentence."""
    if not (app.conf.broker_url or app.conf.broker_read_url):
        try:
            _ = settings.broker  # Celery would look for one of its own choice, for ever
        except ConfigurationError as error:
            raise SystemExit(str(error)) from None
    if not {"json", "application/json"} & set(app.conf.accept_content):
        raise SystemExit(
            "accept_content leaves out json, and our messages are JSON. "
            "Put json into it, or take it out of celeryconfig.py."
        )
    for sentence in (*internals.said_at_start(), *driver_internals.said_at_start()):
        log.warning(sentence)
    for finding in examine_access(app):
        log.warning("The broker %s. %s", finding.fact, finding.advice)
    check_database(settings)


def check_database(settings: Settings) -> None:
    """Pass if the database answers and has our schema; else end the process with one sentence.

    The one connection that a parent ever opens is closed again before anything forks.
    """
    try:
        database = Database(settings.database, prepare=settings.prepare)
        try:
            with database.begin() as connection:
                check_schema(connection)
                synchronise(connection, HANDLERS)
                off = condition.server(connection).forgetful
                learn_own_name(connection)
        finally:
            database.dispose()
    except (ConfigurationError, SchemaError) as error:
        raise SystemExit(str(error)) from None
    except ArgumentError:
        raise SystemExit(
            "TASKS_APP_DATABASE_URL is no URL that SQLAlchemy knows. "
            "It looks like postgresql+psycopg://user:password@host/name."
        ) from None
    except OperationalError:
        raise SystemExit(
            "The database does not answer. Check TASKS_APP_DATABASE_URL and that it runs."
        ) from None
    if off:
        log.warning(
            "The database has %s = off: a crash of the server loses committed tasks, or runs them "
            "twice. Set it on.",
            ", ".join(off),
        )
