"""A command's settings and database."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from sqlalchemy import Connection, Engine

from tasks_app.cli import output
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.config.urls import PREFIX
from tasks_app.domain.errors import ConfigurationError, TasksError
from tasks_app.domain.operations import SignedName, sign_name
from tasks_app.domain.tasks.error_text import place_in_code
from tasks_app.embedded.folder import read_urls
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.schema import check_version
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import load_handlers
from tasks_app.runtime.startup import set_up_framework

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


def load_modules() -> None:
    """Import the handlers; where a module of theirs breaks, say where, and exit with 1."""
    modules = settings().modules
    try:
        load_handlers(modules)
    except TasksError:
        raise
    except Exception as error:
        fact, advice = broken_module(error)
        output.refuse(f"{fact[0].upper()}{fact[1:]}. {advice}")


def broken_module(error: Exception) -> tuple[str, str]:
    """Return what an import of handlers raised, and what to do."""
    place = place_in_code(error)
    at = f" at {place}" if place else ""
    fact = f"a module of TASKS_APP_IMPORTS breaks{at} ({type(error).__name__}: {error})"
    return fact, "Fix it: no worker of these settings starts."


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


def caller() -> SignedName:
    """Return ``user@host`` and ``--why`` for the audit; behind sudo it is the user of sudo."""
    name = os.environ.get("SUDO_USER")
    with suppress(OSError, KeyError):  # a container's user may have no name
        name = name or getpass.getuser()
    context = click.get_current_context(silent=True)
    why = "" if context is None else context.meta.get(_WHY, "")
    return sign_name(f"{name or f'uid {os.getuid()}'}@{socket.gethostname()}", why)
