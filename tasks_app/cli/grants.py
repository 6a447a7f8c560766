"""``grants``: the privileges of a role, as SQL."""

from __future__ import annotations

from typing import Any

import click
from sqlalchemy.exc import ProgrammingError

from tasks_app.cli import output
from tasks_app.cli.database import transaction
from tasks_app.domain.errors import TasksError
from tasks_app.pool.operations.grants import Kind, grants_sql

_NO_SUCH_ROLE = "42704"
"""SQLSTATE: undefined object."""


@click.command()
@click.argument("kind", type=click.Choice([str(kind) for kind in Kind]))
@click.option("--role", required=True, help="The role in the database, which exists.")
@click.option("--apply", "applies", is_flag=True, help="Execute it, as the owner of the tables.")
@output.as_json
def grants(kind: str, *, role: str, applies: bool, json_: bool) -> None:
    """Print the SQL that gives a role what a role of this kind needs, and no more.

    Changes nothing without --apply: give it to psql, as the owner of the tables.
    """
    sql = grants_sql(Kind(kind), role)
    said = {"kind": kind, "role": role, "sql": sql, "applied": applies}
    if not applies:
        output.answer(sql.rstrip("\n"), said, json_=json_)
        return
    with transaction() as connection:
        warnings: list[Any] = []
        driver: Any = connection.connection.driver_connection
        driver.add_notice_handler(
            warnings.append
        )  # PostgreSQL grants less than was asked, and warns
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
