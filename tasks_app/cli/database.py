"""How a command finds its settings and its database, and how it ends when it fails."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, ProgrammingError

from tasks_app.cli.output import say
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.config.unreachable import MAY_NOT, NOT_GRANTED, READ_ONLY, why_unreachable
from tasks_app.domain.config.urls import PREFIX
from tasks_app.domain.errors import (
    AWAY,
    NO,
    USAGE,
    BatchStateError,
    ConfigurationError,
    NotThereError,
    PublishError,
    SchemaError,
    TasksError,
)
from tasks_app.domain.operations import Signed, sign_name
from tasks_app.domain.tasks.error_text import brief
from tasks_app.embedded.folder import EmbeddedError, read_urls
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.schema import check_version
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import sqlstate
from tasks_app.runtime.project import set_up_framework

_WHY = "tasks_app.why"
"""Where a context of click keeps it."""


def settings() -> Settings:
    """Read the settings; the embedded stack of ./.tasks_app fills in URLs that are not set.

    The environment is filled too, so that child processes see the same.
    """
    set_up_framework()
    given = load_settings()
    LOG.level = Logged(given.transitions)
    if given.database_url is not None:
        return given
    found = read_urls()
    if found is None:
        return given
    click.echo("Using the embedded servers of ./.tasks_app.", err=True)
    os.environ[f"{PREFIX}DATABASE_URL"] = found.database
    os.environ.setdefault(f"{PREFIX}BROKER_URL", found.broker)
    return load_settings()


@contextmanager
def opened() -> Iterator[Database]:
    """Yield the database, whatever its schema is, and dispose of it."""
    given = settings()
    if given.database_url is None and Path("manage.py").is_file():
        raise ConfigurationError(
            "No database is configured. In a Django project the commands are those of: "
            "python manage.py tasks_app. Or set DJANGO_SETTINGS_MODULE."
        )
    database = Database(given.database, prepare=given.prepare)
    try:
        yield database
    finally:
        database.dispose()


@contextmanager
def connected() -> Iterator[Engine]:
    """Yield an engine, if this code may use the schema; the block opens its transactions."""
    with opened() as database:
        with database.begin() as connection:
            check_version(connection)
        yield database.engine


@contextmanager
def transaction() -> Iterator[Connection]:
    """Open a transaction that commits at the end of the block."""
    with connected() as engine, engine.begin() as connection:
        yield connection


def _keep(ctx: click.Context, _: click.Parameter, why: str) -> None:
    ctx.meta[_WHY] = why


as_why = click.option(
    "--why",
    metavar="TEXT",
    default="",
    expose_value=False,
    callback=_keep,
    help="Why; the audit keeps it.",
)
"""For verbs that hand on who wants it: ``caller()`` says both."""


def caller() -> Signed:
    """Return ``user@host`` and ``--why`` for the audit; behind sudo it is who called sudo."""
    name = os.environ.get("SUDO_USER")
    with suppress(OSError, KeyError):  # a container's user may have no name
        name = name or getpass.getuser()
    context = click.get_current_context(silent=True)
    why = "" if context is None else context.meta.get(_WHY, "")
    return sign_name(f"{name or f'uid {os.getuid()}'}@{socket.gethostname()}", why)


_REFUSALS = {
    "42P01": ("The schema is missing. Run: tasks-app migrate", NO),
    "25006": (READ_ONLY, NO),
    NOT_GRANTED: (MAY_NOT, NO),
}
"""By SQLSTATE: undefined table, read-only transaction, privileges."""


def ending(error: BaseException) -> int | None:
    """Print what went wrong; return the exit code. None: an unknown error, for its traceback."""
    if isinstance(error, click.ClickException):
        error.show()
        return USAGE
    said = _said(error)
    if said is None:
        return None
    message, status = said
    say(message, err=True)
    return status


def _said(error: BaseException) -> tuple[str, int] | None:
    match error:
        case click.Abort() | KeyboardInterrupt() | EOFError():
            return "Stopped.", NO
        case PublishError():
            return str(error), AWAY
        case OperationalError() | ProgrammingError() | InternalError():
            return _of_database(error)
        case SchemaError() | BatchStateError() | NotThereError():
            return str(error), NO
        case TasksError() | EmbeddedError():
            return str(error), USAGE
        case _:
            return None


def _of_database(error: DBAPIError) -> tuple[str, int] | None:
    state = sqlstate(error)
    why = why_unreachable(str(error.orig))
    if not state and not why.away:
        return str(why), USAGE
    if not state and isinstance(error, OperationalError):
        return str(why), AWAY
    if isinstance(error, OperationalError):
        return f"The database did not do it ({brief(error)}). Try again.", AWAY
    return _REFUSALS.get(state)
