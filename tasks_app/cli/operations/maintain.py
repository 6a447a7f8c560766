"""``maintain``: what tables and indexes waste, and indexes written anew."""

from __future__ import annotations

import sys
from functools import partial

import click

from tasks_app.cli import output
from tasks_app.cli.database import opened, transaction
from tasks_app.domain.errors import NO
from tasks_app.domain.explain.words import count
from tasks_app.pool.operations.bloat import RelationSize, sizes
from tasks_app.runtime.reindex import reindex as rewrite

SHOWN = 20
WORTH_SHOWING = 2**20
"""Bytes: the estimate is one in pages, so of a small index it says nothing."""


@click.command()
@click.option("--reindex", is_flag=True, help="Write bloated indexes anew, while others work.")
@click.option("--index", "indexes", multiple=True, help="With --reindex: these, bloated or not.")
@click.option(
    "--all",
    "all_",
    is_flag=True,
    help="List all, not the 20 that waste most, of those that waste a megabyte.",
)
@output.as_json
def maintain(*, reindex: bool, indexes: tuple[str, ...], all_: bool, json_: bool) -> None:
    """Show what tables and indexes waste, by estimate.

    With --reindex one index after the other is written anew, by REINDEX INDEX CONCURRENTLY:
    nobody waits. It may be killed and run again. Exit 1: an index stayed as it was, because
    a transaction was open for more than a minute.
    """
    if indexes and not reindex:
        raise click.UsageError("--index goes with --reindex.")
    if reindex:
        _reindex(indexes, json_=json_)
        return
    with transaction() as connection:
        found = sizes(connection)
    shown = found if all_ else [size for size in found[:SHOWN] if size.wasted >= WORTH_SHOWING]
    if not (shown or json_):
        output.say("Nothing wastes a megabyte. To list all: tasks-app maintain --all")
        return
    columns = ("name", "table", "kind", "bytes", "if written anew", "wasted")
    output.print_list(shown, columns, _line, json_=json_)


def _line(size: RelationSize) -> tuple[object, ...]:
    if size.estimate is None:
        return size.name, size.table, size.kind, size.bytes, "not analysed", ""
    share = f"{100 * size.wasted // max(1, size.bytes)} %"
    return size.name, size.table, size.kind, size.bytes, size.estimate, share


def _reindex(indexes: tuple[str, ...], *, json_: bool) -> None:
    with opened() as database:
        result = rewrite(database, indexes, partial(click.echo, err=json_))
    if json_:
        output.print_json(result)
    else:
        for name in result.dropped:
            click.echo(f"{name}, which an earlier try left half done, was dropped")
        none = "" if result.done or result.in_use else " None wastes more than half and 10 MB."
        click.echo(f"{count(len(result.done), 'index')} written anew.{none}")
    for name in result.in_use:
        output.say(
            f"{name} stays: a transaction is open for long. tasks-app doctor names it. "
            "Then try again.",
            err=True,
        )
    sys.exit(NO if result.in_use else 0)
