"""``migrate``: the schema."""

from __future__ import annotations

import sys

import click

from tasks_app.cli import output
from tasks_app.cli.database import settings, transaction
from tasks_app.domain.errors import SchemaError
from tasks_app.pool.schema import check_schema, migration_sql, newest
from tasks_app.pool.schema import migrate as upgrade
from tasks_app.runtime.database import Database
from tasks_app.runtime.maintainer import Maintainer


@click.command()
@click.option("--check", is_flag=True, help="Only tell: exit 1 if the schema is not up to date.")
@click.option("--sql", is_flag=True, help="Print the SQL of all migrations, for a DBA.")
@output.as_json
def migrate(*, check: bool, sql: bool, json_: bool) -> None:
    """Bring the schema up to date. Safe to repeat, and to run twice at once."""
    if sql:
        script = migration_sql()
        output.answer(script, {"sql": script}, json_=json_)
    elif check:
        _check(json_=json_)
    else:
        _upgrade(json_=json_)


def _check(*, json_: bool) -> None:
    try:
        with transaction() as connection:
            check_schema(connection)
    except SchemaError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    words = f"The schema is up to date ({newest()})."
    output.answer(words, {"schema": newest(), "up_to_date": True}, json_=json_)


def _upgrade(*, json_: bool) -> None:
    database = Database(settings().database, prepare=settings().prepare)
    with database.begin() as connection:
        before, after = upgrade(connection)
    made = Maintainer(database).run_once()
    database.dispose()
    went = f"went from {before or 'nothing'} to {after}"
    if before == after:
        went = f"was up to date ({after})"
    done = {"before": before, "after": after, "partitions": made}
    output.answer(f"The schema {went}; {made} partitions made.", done, json_=json_)
