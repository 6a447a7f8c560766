"""``migrate``, ``grants``, ``notify``: what an owner of the database installs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click
from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from tasks_app.cli import output
from tasks_app.cli.database import opened, transaction
from tasks_app.domain.durations import count
from tasks_app.domain.errors import TasksError
from tasks_app.pool.dispatch import notifications
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.schema import check_schema, migration_sql, newest
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.migration import migrate as upgrade


@click.command()
@click.option("--check", is_flag=True, help="Only check: exit 1 if this code cannot run on it.")
@click.option("--sql", is_flag=True, help="Print the SQL of all migrations, for a DBA.")
@output.as_json
def migrate(*, check: bool, sql: bool, json_: bool) -> None:
    """Bring the schema up to date while others work on it.

    Safe to repeat, to interrupt, and to run twice at once.
    """
    if sql:
        script = migration_sql()
        output.answer(script, {"sql": script}, json_=json_)
        return
    with opened() as database:
        (_check if check else _upgrade)(database, json_=json_)


def _check(database: Database, *, json_: bool) -> None:
    with database.begin() as connection:
        notice = check_schema(connection)
    words = notice or f"The schema is up to date ({newest()})."
    output.answer(words, {"schema": newest(), "up_to_date": not notice}, json_=json_)


def _upgrade(database: Database, *, json_: bool) -> None:
    before, after = upgrade(database, partial(click.echo, err=json_))
    with database.begin() as connection:
        notice = check_schema(connection)
    made = Maintainer(database).run_once()
    went = f"went from {before or 'nothing'} to {after}"
    if before == after:
        went = f"was up to date ({after})"
    partitions = f"{count(made, 'partition')} made."
    words = f"{notice} Nothing to migrate; " if notice else f"The schema {went}; "
    words += partitions
    done = {"before": before, "after": after, "partitions": made}
    output.answer(words, done, json_=json_)


_NO_SUCH_ROLE = "42704"
"""SQLSTATE: undefined object."""


@click.command()
@click.argument("kind", type=click.Choice([str(kind) for kind in RoleKind]))
@click.option("--role", required=True, help="An existing role of the database.")
@click.option("--apply", "applies", is_flag=True, help="Execute it, as the owner of the tables.")
@output.as_json
def grants(kind: str, *, role: str, applies: bool, json_: bool) -> None:
    """Print the SQL that gives a role the rights that it needs.

    Changes nothing without --apply: give it to psql, as the owner of the tables.
    """
    sql = grants_sql(RoleKind(kind), role)
    said = {"kind": kind, "role": role, "sql": sql, "applied": applies}
    if not applies:
        output.answer(sql.rstrip("\n"), said, json_=json_)
        return
    with transaction() as connection:
        warnings: list[Any] = []
        driver: Any = connection.connection.driver_connection
        # Who may not grant something gets a warning, and the rest is granted.
        driver.add_notice_handler(warnings.append)
        try:
            for statement in sql.splitlines():
                connection.exec_driver_sql(statement.replace("%", "%%"))
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) != _NO_SUCH_ROLE:
                raise
            raise TasksError(f"There is no role {role}. Make it first: CREATE ROLE.") from None
        if warnings:
            raise TasksError("Only the owner of the tables can grant this. Connect as the owner.")
    output.answer(f"{role} may do now what a {kind} does", said, json_=json_)


@click.group()
def notify() -> None:
    """Wake workers at once for tasks that SQL creates.

    A trigger notifies in the producer's transaction. Such transactions commit one after another.
    """


@notify.command()
@output.as_json
def install(*, json_: bool) -> None:
    """Make the trigger, as the owner of the tables."""
    _change(notifications.install_trigger, "installed", "was installed already", json_=json_)


@notify.command()
@output.as_json
def remove(*, json_: bool) -> None:
    """Drop the trigger, as the owner of the tables."""
    _change(notifications.remove_trigger, "removed", "was not installed", json_=json_)


@notify.command()
@output.as_json
def status(*, json_: bool) -> None:
    """Say whether the trigger is installed."""
    with transaction() as connection:
        there = notifications.is_trigger_installed(connection)
    output.answer("installed" if there else "not installed", {"installed": there}, json_=json_)


def _change(change: Callable[[Connection], bool], done: str, nothing: str, *, json_: bool) -> None:
    with transaction() as connection:
        changed = change(connection)
        there = notifications.is_trigger_installed(connection)
    said = {"installed": there, "changed": changed}
    output.answer(done if changed else nothing, said, json_=json_)
