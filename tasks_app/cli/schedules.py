"""``schedules``: tasks made by the clock; listed, made, changed, previewed, backfilled."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click

from tasks_app.actions import schedules as actions
from tasks_app.cli import output
from tasks_app.cli.commands import add_commands, json_object, moment, options
from tasks_app.cli.database import as_why, caller, settings, transaction
from tasks_app.cli.task_moves import hint_at_name
from tasks_app.domain.durations import count, format_duration, to_the_second
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.pool.tables import database_now
from tasks_app.runtime.api.tasks import get_task
from tasks_app.runtime.encryption.values import masks
from tasks_app.runtime.handlers.registry import load_handlers
from tasks_app.runtime.schedules import preview as previews
from tasks_app.runtime.schedules import schedules as rows

timing = options(
    click.option("--cron", help="'30 2 * * *'; six fields begin with seconds."),
    click.option("--every", help="An interval: 90s, 15m, 6h."),
    click.option("--at", help="One instant, ISO 8601 with a zone."),
    click.option("--timezone", help="The time zone of --cron. Default: UTC."),
    click.option("--calendar", help="Its days are days off; '' for none."),
    click.option("--on-day-off", help="skip (default) or next_working_day."),
    click.option("--starts-at", help="ISO 8601 with a zone."),
    click.option("--ends-at", help="ISO 8601 with a zone."),
)


policies = options(
    click.option("--queue", help="Default: the handler's queue where it is known."),
    click.option("--priority", type=int, help="0 is first, 9 last."),
    click.option("--missed", help="skip, fire_once (default) or fire_all(100, 1d)."),
    click.option("--overlap", help="allow (default), skip, queue or replace."),
    click.option("--jitter", help="Tasks become due up to this much later."),
)


def read_options(given: dict[str, Any]) -> Any:
    moments = ("at", "starts_at", "ends_at")
    return {
        word: moment(value) if word in moments else value
        for word, value in given.items()
        if value is not None
    }


def known(found: Any, name: str) -> Any:
    if found is None:
        output.refuse(f"There is no schedule {name}. Run: tasks-app schedules list")
    return found


def tell(made: Schedule, *, json_: bool) -> None:
    words = f"{made.explain()}.\nNext: {shown_at(made.next_run_at)}"
    output.answer(words, fields(made), json_=json_)


def line(schedule: Schedule, now: datetime, *, wide: bool) -> list[str]:
    zone = f" {schedule.zone}" if schedule.kind == "cron" else ""
    when = f"{schedule.kind} {schedule.expression}{zone}"
    instants = schedule.next_run_at, schedule.last_run_at
    outcome, source = schedule.last_outcome, schedule.declared_in or schedule.changed_by
    return [
        *(schedule.name, schedule.task, when, "yes" if schedule.enabled else "no"),
        *(output.at(at, now, wide=wide) for at in instants),
        *("" if schedule.remark else output.cell(outcome), output.cell(source)),
    ]


def fields(schedule: Schedule) -> dict[str, Any]:
    try:
        words = schedule.explain()
    except ValueError as error:
        words = str(error)
    return {
        "name": schedule.name,
        "words": words,
        **{word: value for word, value in schedule.plain().items() if word != "options"},
        "payload": masks().value(schedule.task, json.loads(schedule.payload)),
        **json.loads(schedule.options),
        **{
            word: getattr(schedule, word)
            for word in (
                *("next_run_at", "queued_at", "last_run_at", "last_task_id", "last_outcome"),
                *("remark", "declared_in", "changed_by", "created_at"),
            )
        },
    }


def shown_at(at: datetime | None) -> str:
    return "never" if at is None else to_the_second(at)


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


_LISTED = ("name", "task", "when", "enabled", "next", "last", "outcome", "from")


@click.group()
def schedules() -> None:
    """Make tasks by the clock: list, add, preview, backfill, run."""


schedules.add_command(preview)
schedules.add_command(backfill)


@schedules.command("list")
@output.as_wide
@output.as_json
def list_(*, wide: bool, json_: bool) -> None:
    """List all schedules, with their next and last instants."""
    with transaction() as connection:
        found, now = rows.list_schedules(connection), database_now(connection)
    if json_:
        output.print_json([fields(schedule) for schedule in found])
        return
    output.echo(
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
