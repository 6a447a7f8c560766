"""``grants``: the privileges of a role, as SQL."""

from __future__ import annotations

import click

from tasks_app.pool.grants import Kind, grants_sql


@click.command()
@click.argument("kind", type=click.Choice([str(kind) for kind in Kind]))
@click.option("--role", required=True, help="The role in the database, which exists.")
def grants(kind: str, *, role: str) -> None:
    """Print the SQL that gives a role what a role of this kind needs, and no more.

    Changes nothing: give it to psql, as the owner of the tables.
    """
    click.echo(grants_sql(Kind(kind), role), nl=False)
