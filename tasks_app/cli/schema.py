"""``migrate``: the schema."""

from __future__ import annotations

import sys

import click

from tasks_app.cli.database import settings, transaction
from tasks_app.domain.errors import SchemaError
from tasks_app.pool.schema import check_schema, migration_sql, newest
from tasks_app.pool.schema import migrate as upgrade
from tasks_app.runtime.database import Database
from tasks_app.runtime.maintainer import Maintainer


@click.command()
@click.option("--check", is_flag=True, help="Only tell: exit 1 if the schema is not up to date.")
@click.option("--sql", is_flag=True, help="Print the SQL of all migrations, for a DBA.")
def migrate(*, check: bool, sql: bool) -> None:
    """Bring the schema up to date. Safe to repeat, and to run twice at once."""
    if sql:
        click.echo(migration_sql())
    elif check:
        _check()
    else:
        _upgrade()


def _check() -> None:
    try:
        with transaction() as connection:
            check_schema(connection)
    except SchemaError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(f"The schema is up to date ({newest()}).")


def _upgrade() -> None:
    database = Database(settings().database, prepare=settings().prepare)
    with database.begin() as connection:
        before, after = upgrade(connection)
    made = Maintainer(database).run_once()
    database.dispose()
    if before == after:
        click.echo(f"The schema was up to date ({after}); {made} partitions made.")
    else:
        click.echo(
            f"The schema went from {before or 'nothing'} to {after}; {made} partitions made."
        )
