"""``migrate``, ``grants``, ``notify``: for the owner of the database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click
from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from tasks_app.cli import output
from tasks_app.cli.database import open_database, transaction
from tasks_app.domain.durations import count
from tasks_app.domain.errors import TasksError
from tasks_app.pool.dispatch import notifications
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.schema import check_schema, migration_sql, newest
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.migration import migrate as upgrade


@click.command()
@click.option("--check", is_flag=True, help="Only check: exit 1 if this code cannot use it.")
@click.option("--sql", is_flag=True, help="Print the SQL of all migrations, for a DBA.")
@output.json_option
def migrate(*, check: bool, sql: bool, json_: bool) -> None:
    """Bring the schema up to date while others use it.

    You may repeat it, interrupt it, and run it twice at once.
    """
    if sql:
        script = migration_sql()
        output.print_answer(script, {"sql": script}, json_=json_)
        return
    with open_database() as database:
        if check:
            with database.begin() as connection:
                notice = check_schema(connection)
            words = notice or f"The schema is up to date ({newest()})."
            output.print_answer(words, {"schema": newest(), "up_to_date": not notice}, json_=json_)
            return
        before, after = upgrade(database, partial(click.echo, err=json_))
        with database.begin() as connection:
            notice = check_schema(connection)
        made = Maintainer(database).run_once()
    if notice:
        words = f"{notice} Nothing to migrate"
    elif before == after:
        words = f"The schema was up to date ({after})"
    else:
        words = f"The schema went from {before or 'nothing'} to {after}"
    done = {"before": before, "after": after, "partitions": made}
    output.print_answer(f"{words}; {count(made, 'partition')} created.", done, json_=json_)


@click.command()
@click.argument("kind", type=click.Choice([str(kind) for kind in RoleKind]))
@click.option("--role", required=True, help="An existing role of the database.")
@click.option("--apply", "applies", is_flag=True, help="Execute it, as the owner of the tables.")
@output.json_option
def grants(kind: str, *, role: str, applies: bool, json_: bool) -> None:
    """Print the SQL that gives a role the rights that it needs.

    Without --apply it changes nothing: run it with psql, as the owner of the tables.
    """
    sql = grants_sql(RoleKind(kind), role)
    fields = {"kind": kind, "role": role, "sql": sql, "applied": applies}
    if not applies:
        output.print_answer(sql.rstrip("\n"), fields, json_=json_)
        return
    with transaction() as connection:
        warnings: list[Any] = []
        driver: Any = connection.connection.driver_connection
        # For a right that it must not grant a role gets a warning; the rest is granted.
        driver.add_notice_handler(warnings.append)
        try:
            for statement in sql.splitlines():
                connection.exec_driver_sql(statement.replace("%", "%%"))
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) != "42704":  # undefined object
                raise
            raise TasksError(f"There is no role {role}. Create it first: CREATE ROLE.") from None
        if warnings:
            raise TasksError("Only the owner of the tables can grant this. Connect as the owner.")
    output.print_answer(f"{role} now has the rights of a {kind}", fields, json_=json_)


@click.group()
def notify() -> None:
    """Wake workers at once for tasks that SQL creates.

    A trigger notifies in the producer's transaction. Such transactions commit one after another.
    """


@notify.command()
@output.json_option
def install(*, json_: bool) -> None:
    """Create the trigger, as the owner of the tables."""
    _change(notifications.install_trigger, "installed", "was installed already", json_=json_)


@notify.command()
@output.json_option
def remove(*, json_: bool) -> None:
    """Drop the trigger, as the owner of the tables."""
    _change(notifications.remove_trigger, "removed", "was not installed", json_=json_)


@notify.command()
@output.json_option
def status(*, json_: bool) -> None:
    """Say whether the trigger is installed."""
    with transaction() as connection:
        there = notifications.is_trigger_installed(connection)
    output.print_answer(
        "installed" if there else "not installed", {"installed": there}, json_=json_
    )


def _change(change: Callable[[Connection], bool], done: str, nothing: str, *, json_: bool) -> None:
    with transaction() as connection:
        changed = change(connection)
        there = notifications.is_trigger_installed(connection)
    fields = {"installed": there, "changed": changed}
    output.print_answer(done if changed else nothing, fields, json_=json_)
