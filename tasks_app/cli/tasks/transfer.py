"""``export``, ``import``, ``cancel-moved``: waiting tasks from one database into another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import as_why, caller, connected
from tasks_app.domain.errors import NO
from tasks_app.domain.explain.words import count
from tasks_app.runtime.transfer.exporting import cancel_moved, export_tasks
from tasks_app.runtime.transfer.importing import import_tasks

SHOWN = 20


def _file(_context: click.Context, _parameter: click.Parameter, given: Path) -> Path:
    if str(given) == "-":
        raise click.BadParameter("it holds payloads, so it is no standard input or output")
    return given


file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False), callback=_file)


@click.command()
@file
@click.option("--name", help="Tasks of this name.")
@click.option("--queue", help="Of this queue.")
@click.option("--biz-key", help="Of this business object: order:42.")
@click.option("--held", is_flag=True, default=None, help="Only those that are held.")
@click.option("--retrying", is_flag=True, default=None, help="Only those that have run before.")
@click.option("--older-than", help="Created longer ago than this: 30m, 6h, 2d.")
@click.option("--newer-than", help="Created within this long.")
@as_why
@output.as_json
def export(file: Path, *, json_: bool, **selection: Any) -> None:
    """Write waiting tasks to FILE, a line of JSON each; they stay.

    FILE holds their payloads, and only you can read it. It is there when it is
    whole. Exit 1: members of groups were left out.
    """
    with connected() as engine:
        done = export_tasks(engine, file, by=caller(), **selection)
    output.answer(f"{count(done.tasks, 'task')} exported to {file}", done, json_=json_)
    _left(done.members, "left out, as members of groups")


@click.command("import")
@file
@click.option(
    "--receipt",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What is here now, for `cancel-moved`. Default: FILE.moved.",
)
@as_why
@output.as_json
def import_(file: Path, receipt: Path | None, *, json_: bool) -> None:
    """Create the tasks that `export` has written, each once.

    It may be killed and run again. Exit 1: tasks were left out, as others have
    their unique keys.
    """
    receipt = receipt or file.with_name(f"{file.name}.moved")
    with connected() as engine:
        done = import_tasks(engine, file, receipt, by=caller())
    words = f"{count(done.tasks, 'task')} of {file} here: {receipt} says which"
    output.answer(words, done, json_=json_)
    _left(done.left_out, "left out: others have their names and unique keys here")


@click.command("cancel-moved")
@file
@as_why
@output.as_json
def cancel_moved_(file: Path, *, json_: bool) -> None:
    """Cancel held tasks that `import` created elsewhere.

    FILE is the receipt that `import` wrote. Exit 1: some are not held, and left as they are.
    """
    with connected() as engine:
        done = cancel_moved(engine, file, by=caller())
    output.answer(f"{count(done.cancelled, 'task')} cancelled", done, json_=json_)
    _left(done.left, "left alone, not held here or gone")


def _left(ids: list[int], why: str) -> None:
    if ids:
        shown = " ".join(map(str, ids[:SHOWN])) + (" …" if len(ids) > SHOWN else "")
        click.echo(f"{len(ids)} {why}: {shown}", err=True)
        sys.exit(NO)
