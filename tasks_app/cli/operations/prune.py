"""``prune``: delete now what is old enough, not at the next maintenance."""

from __future__ import annotations

import sys

import click

from tasks_app.cli import output
from tasks_app.cli.database import as_why, caller, opened, settings, transaction
from tasks_app.domain.errors import NO
from tasks_app.domain.explain.words import count
from tasks_app.runtime.leader.retention import Pruned, Retention
from tasks_app.runtime.leader.retention_preview import preview_retention


@click.command()
@click.option(
    "--dry-run", is_flag=True, help="Only print what would be deleted: partitions, rows, bytes."
)
@as_why
@output.as_json
def prune(*, dry_run: bool, json_: bool) -> None:
    """Delete what is older than the settings TASKS_APP_KEEP_* say.

    They are TASKS_APP_KEEP_COMPLETED, _ERRORS and _BATCHES. Maintenance does the same once an
    hour, a quarter of a second at a time. Exit 1: something had to stay, because somebody uses it
    or because this role may not drop partitions.
    """
    if dry_run:
        _tell(json_=json_)
        return
    with opened() as database:
        pruned = Retention(settings(), database).run_for(caller())
    if json_:
        output.print_json(pruned)
    else:
        _print(pruned)
    sys.exit(NO if pruned.in_use or pruned.not_ours else 0)


def _tell(*, json_: bool) -> None:
    with transaction() as connection:
        found = list(preview_retention(connection, settings()))
    if json_:
        output.print_json(found)
    elif not found:
        click.echo("Nothing is too old.")
    else:
        output.print_table(
            ("pool", "what", "rows", "bytes", "would be", "kept"),
            [(d.pool or "batches", d.what, d.rows, d.bytes, d.how, d.kept) for d in found],
        )


def _print(pruned: Pruned) -> None:
    for name in pruned.days:
        click.echo(f"{name} dropped")
    days, errors = count(len(pruned.days), "day"), count(pruned.errors, "failed task")
    click.echo(f"{days} dropped, {pruned.completed} completed and {errors} deleted")
    if pruned.batches:
        click.echo(f"{count(pruned.batches, 'batch instance')} deleted, with all partitions")
    for name in pruned.in_use:
        output.say(
            f"{name} is in use and stays. Who holds it: tasks-app doctor. Then try again.", err=True
        )
    if pruned.not_ours:
        click.echo("Completed tasks stay: run this as the owner of the tables.", err=True)
