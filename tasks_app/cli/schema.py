"""``migrate``: the schema."""

from __future__ import annotations

import click

from tasks_app.cli.database import settings
from tasks_app.pool.schema import check_schema, migration_sql, newest
from tasks_app.runtime.database import Database
from tasks_app.runtime.maintainer import Maintainer
from tasks_app.runtime.migration import migrate as upgrade


@click.command()
@click.option("--check", is_flag=True, help="Only tell: exit 1 if this code cannot run on it.")
@click.option("--sql", is_flag=True, help="Print the SQL of all migrations, for a DBA.")
def migrate(*, check: bool, sql: bool) -> None:
    """Bring the schema up to date while others work on it.

    Safe to repeat, to interrupt, and to run twice at once.
    """
    if sql:
        click.echo(migration_sql())
        return
    database = Database(settings().database, prepare=settings().prepare)
    try:
        if check:
            _check(database)
        else:
            _upgrade(database)
    finally:
        database.dispose()


def _check(database: Database) -> None:
    with database.begin() as connection:
        notice = check_schema(connection)
    click.echo(notice or f"The schema is up to date ({newest()}).")


def _upgrade(database: Database) -> None:
    before, after = upgrade(database, click.echo)
    with database.begin() as connection:
        notice = check_schema(connection)
    made = Maintainer(database).run_once()
    if notice:
        click.echo(f"{notice} Nothing to migrate; {made} partitions made.")
    elif before == after:
        click.echo(f"The schema was up to date ({after}); {made} partitions made.")
    else:
        click.echo(
            f"The schema went from {before or 'nothing'} to {after}; {made} partitions made."
        )
