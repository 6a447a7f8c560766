"""A command's settings and database, and how it ends when it fails."""

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

from tasks_app.cli.output import print_text
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

_WHY = "tasks_app.why"  # the key in a context of click


def settings() -> Settings:
    """Read the settings; the embedded stack of ./.tasks_app provides URLs that are not set.

    It also sets them in the environment, for child processes.
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
def open_database() -> Iterator[Database]:
    """Yield the database, also with another schema, and dispose of it."""
    given = settings()
    if given.database_url is None and Path("manage.py").is_file():
        raise ConfigurationError(
            "No database is configured. In a Django project run: "
            "python manage.py tasks_app. Or set DJANGO_SETTINGS_MODULE."
        )
    database = Database(given.database, prepare=given.prepare)
    try:
        yield database
    finally:
        database.dispose()


@contextmanager
def open_engine() -> Iterator[Engine]:
    """Yield an engine if this code can use the schema; the block opens its transactions."""
    with open_database() as database:
        with database.begin() as connection:
            check_version(connection)
        yield database.engine


@contextmanager
def transaction() -> Iterator[Connection]:
    with open_engine() as engine, engine.begin() as connection:
        yield connection


def _keep_why(ctx: click.Context, _: click.Parameter, why: str) -> None:
    ctx.meta[_WHY] = why


why_option = click.option(
    "--why",
    metavar="TEXT",
    default="",
    expose_value=False,
    callback=_keep_why,
    help="Why; the audit keeps it.",
)
"""It does not reach the command: ``caller()`` returns it."""


def caller() -> Signed:
    """Return ``user@host`` and ``--why`` for the audit; behind sudo it is the user of sudo."""
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


def print_error(error: BaseException) -> int | None:
    """Print what went wrong; return the exit code. None: unknown, so show its traceback."""
    found: tuple[str, int] | None = None
    match error:
        case click.ClickException():
            error.show()
            return USAGE
        case click.Abort() | KeyboardInterrupt() | EOFError():
            found = "Stopped.", NO
        case PublishError():
            found = str(error), AWAY
        case OperationalError() | ProgrammingError() | InternalError():
            found = _of_database(error)
        case SchemaError() | BatchStateError() | NotThereError():
            found = str(error), NO
        case TasksError() | EmbeddedError():
            found = str(error), USAGE
        case _:
            pass
    if found is None:
        return None
    print_text(found[0], err=True)
    return found[1]


def _of_database(error: DBAPIError) -> tuple[str, int] | None:
    state = sqlstate(error)
    why = why_unreachable(str(error.orig))
    if not state and not why.away:
        return str(why), USAGE
    if not state and isinstance(error, OperationalError):
        return str(why), AWAY
    if isinstance(error, OperationalError):
        return f"The database could not carry it out ({brief(error)}). Try again.", AWAY
    return _REFUSALS.get(state)
