"""``schedules preview`` and ``backfill``: instants to come, and instants left out."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.arguments import moment
from tasks_app.cli.database import as_why, caller, transaction
from tasks_app.cli.schedules.fields import known, read_options, shown_at, timing
from tasks_app.domain.explain.words import count
from tasks_app.runtime.schedules import preview as previews


@click.command()
@click.argument("name", required=False)
@timing
@click.option(
    "--count",
    "-n",
    "number",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="How many instants.",
)
@output.as_json
def preview(name: str | None, number: int, *, json_: bool, **given: Any) -> None:
    """Say when a schedule fires, or one with these options would. Changes nothing."""
    options = read_options(given)
    if bool(options) == (name is not None):
        raise click.UsageError("Give a name, or --cron, --every or --at.")
    with transaction() as connection:
        if name is None:
            shown = previews.preview(connection, number, **options)
        else:
            shown = known(previews.preview_schedule(connection, name, number), name)
    told = "\n".join([f"{shown.words}.", *map(shown_at, shown.instants)])
    output.answer(told, {"words": shown.words, "instants": shown.instants}, json_=json_)


@click.command()
@click.argument("name")
@click.argument("start")
@click.argument("end")
@as_why
@output.as_json
def backfill(name: str, start: str, end: str, *, json_: bool) -> None:
    """Make a task for each instant from START to END that has none.

    Both are ISO 8601 with a zone, and past; END itself is left out. Repeating it makes no second
    task.
    """
    with transaction() as connection:
        made = previews.backfill_schedule(connection, name, moment(start), moment(end), by=caller())
    ids = [int(task_id) for task_id in known(made, name)]
    output.answer(f"{count(len(ids), 'task')} made", {"name": name, "ids": ids}, json_=json_)
