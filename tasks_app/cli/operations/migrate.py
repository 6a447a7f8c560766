"""``migrate``: bring the schema up to date, or check it."""

from __future__ import annotations

from functools import partial

import click

from tasks_app.cli import output
from tasks_app.cli.database import opened
from tasks_app.domain.explain.words import count
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
