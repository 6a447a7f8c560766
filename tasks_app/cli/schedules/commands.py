"""``schedules``: tasks made by the clock; listed, made, changed, run, removed."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.actions import schedules as actions
from tasks_app.cli import listing, output
from tasks_app.cli.acting import add_commands
from tasks_app.cli.arguments import json_object
from tasks_app.cli.database import as_why, caller, settings, transaction
from tasks_app.cli.handler_names import hint_at_name
from tasks_app.cli.schedules.fields import (
    fields,
    known,
    line,
    policies,
    read_options,
    tell,
    timing,
)
from tasks_app.cli.schedules.instants import backfill, preview
from tasks_app.domain.durations import format_duration
from tasks_app.pool.connection.clock import instant
from tasks_app.runtime.api.tasks import get_task
from tasks_app.runtime.handlers.registry import load_handlers
from tasks_app.runtime.schedules import schedules as rows

_LISTED = ("name", "task", "when", "enabled", "next", "last", "outcome", "from")


@click.group()
def schedules() -> None:
    """Make tasks by the clock: list, add, preview, backfill, run."""


schedules.add_command(preview)
schedules.add_command(backfill)


@schedules.command("list")
@listing.as_wide
@output.as_json
def list_(*, wide: bool, json_: bool) -> None:
    """List all schedules, with their next and last instants."""
    with transaction() as connection:
        found, now = rows.list_schedules(connection), instant(connection)
    if json_:
        output.print_json([fields(schedule) for schedule in found])
        return
    listing.echo(
        _LISTED,
        [line(schedule, now, wide=wide) for schedule in found],
        [schedule.remark or "" for schedule in found],
        remark="remark",
        cut=("name", "task", "when", "from"),
        wide=wide,
    )


@schedules.command()
@click.argument("name")
@output.as_json
def show(name: str, *, json_: bool) -> None:
    """Show one schedule, also in words."""
    with transaction() as connection:
        found = known(rows.get_schedule(connection, name), name)
        last = get_task(connection, found.last_task_id) if found.last_task_id else None
    said = {**fields(found), "last_task_state": last and last.state}
    if json_:
        output.print_json(said)
    else:
        output.print_fields({**said, "jitter": format_duration(found.jitter)}.items())


@schedules.command()
@click.argument("name")
@click.argument("task")
@click.argument("payload", default="{}")
@timing
@policies
@as_why
@output.as_json
def add(name: str, task: str, payload: str, *, json_: bool, **given: Any) -> None:
    """Add a schedule that makes a TASK with this PAYLOAD, a JSON object."""
    load_handlers(settings().modules)
    with transaction() as connection:
        made = rows.create_schedule(
            connection, name, task, json_object(payload), by=caller(), **read_options(given)
        )
    hint_at_name(task, f"remove the schedule: tasks-app schedules remove {name}")
    tell(made, json_=json_)


@schedules.command()
@click.argument("name")
@click.option("--payload", help="A JSON object.")
@timing
@policies
@as_why
@output.as_json
def change(name: str, payload: str | None, *, json_: bool, **given: Any) -> None:
    """Change what is given. Code that declares the schedule leaves the change alone."""
    load_handlers(settings().modules)
    new = None if payload is None else json_object(payload)
    with transaction() as connection:
        changed = rows.change_schedule(connection, name, new, by=caller(), **read_options(given))
    tell(known(changed, name), json_=json_)


add_commands(schedules, actions)
