"""``grants``: the privileges of a role, as SQL."""

from __future__ import annotations

from typing import Any

import click
from sqlalchemy.exc import ProgrammingError

from tasks_app.cli import output
from tasks_app.cli.database import transaction
from tasks_app.domain.errors import TasksError
from tasks_app.pool.operations.grants import RoleKind, grants_sql

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
