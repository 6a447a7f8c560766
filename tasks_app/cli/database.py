"""How a command finds its settings and its database, and who runs it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from sqlalchemy import Connection, Engine

from tasks_app.domain.config.schema_name import PREFIX
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.operations.author import Signed, signed
from tasks_app.embedded.folder import read_urls
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.schema import check_version
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.framework import set_up_framework

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
    return signed(f"{name or f'uid {os.getuid()}'}@{socket.gethostname()}", why)
