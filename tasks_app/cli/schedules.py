"""``schedules``: what is made when; shown, changed, tried out, filled up."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import caller, settings, transaction
from tasks_app.cli.tasks import json_object, moment
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.runtime.api.tasks import get_task
from tasks_app.runtime.handlers.registry import load_handlers
from tasks_app.runtime.schedules import preview as rehearsal
from tasks_app.runtime.schedules import schedules as rows

_LISTED = ("name", "task", "when", "enabled", "next_run_at", "last_run_at", "last_outcome", "from")


@click.group()
def schedules() -> None:
    """Make tasks by the clock: list, add, change, try out, fill up the past."""


def timing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say when."""
    for option in reversed(
        (
            click.option("--cron", help="Such as '30 2 * * *'; six fields begin with seconds."),
            click.option("--every", help="Such as 90s, 15m, 6h."),
            click.option("--at", help="One instant, ISO 8601 with a zone."),
            click.option("--timezone", help="Whose clocks --cron reads. Default: UTC."),
            click.option("--starts-at", help="ISO 8601 with a zone."),
            click.option("--ends-at", help="ISO 8601 with a zone."),
        )
    ):
        command = option(command)
    return command


def policies(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how."""
    for option in reversed(
        (
            click.option("--queue", help="Default: the handler's queue where it is known."),
            click.option("--priority", type=int, help="0 is first, 9 last."),
            click.option("--missed", help="skip, fire_once (default) or fire_all(100, 1d)."),
            click.option("--overlap", help="allow (default), skip, queue or replace."),
            click.option("--jitter", help="Tasks become due up to so much later."),
        )
    ):
        command = option(command)
    return command


@schedules.command("list")
@output.as_json
def list_(*, json_: bool) -> None:
    """List all schedules."""
    with transaction() as connection:
        found = rows.list_schedules(connection)
    if json_:
        output.print_json([_fields(schedule) for schedule in found])
        return
    output.print_table(_LISTED, [_line(schedule) for schedule in found])


@schedules.command()
@click.argument("name")
@output.as_json
def show(name: str, *, json_: bool) -> None:
    """Show one schedule, in words, too."""
    with transaction() as connection:
        found = _known(rows.get_schedule(connection, name), name)
        last = get_task(connection, found.last_task_id) if found.last_task_id else None
    fields = {**_fields(found), "last_task_state": last and last.state}
    output.print_json(fields) if json_ else output.print_fields(fields.items())


@schedules.command()
@click.argument("name")
@click.argument("task")
@click.argument("payload", default="{}")
@timing
@policies
@output.as_json
def add(name: str, task: str, payload: str, *, json_: bool, **given: Any) -> None:
    """Add a schedule that makes a TASK with this PAYLOAD, a JSON object."""
    load_handlers(settings().modules)
    with transaction() as connection:
        made = rows.create_schedule(
            connection, name, task, json_object(payload), by=caller(), **_options(given)
        )
    _tell(made, json_=json_)


@schedules.command()
@click.argument("name")
@click.option("--payload", help="A JSON object.")
@timing
@policies
@output.as_json
def change(name: str, payload: str | None, *, json_: bool, **given: Any) -> None:
    """Change what is given; code that declares the schedule leaves it so."""
    load_handlers(settings().modules)
    new = None if payload is None else json_object(payload)
    with transaction() as connection:
        changed = rows.change_schedule(connection, name, new, by=caller(), **_options(given))
    _tell(_known(changed, name), json_=json_)


@schedules.command()
@click.argument("name")
@output.as_json
def enable(name: str, *, json_: bool) -> None:
    """Let a schedule fire again, from now on."""
    with transaction() as connection:
        done = rows.enable_schedule(connection, name, by=caller())
        found = rows.get_schedule(connection, name)
    _known(done or None, name)
    next_run_at = None if found is None else found.next_run_at
    output.answer(
        f"enabled\nNext: {_shown(next_run_at)}",
        {"name": name, "enabled": True, "next_run_at": next_run_at},
        json_=json_,
    )


@schedules.command()
@click.argument("name")
@output.as_json
def disable(name: str, *, json_: bool) -> None:
    """Let a schedule fire no more; what it would fire meanwhile is not made up for."""
    with transaction() as connection:
        done = rows.disable_schedule(connection, name, by=caller())
    _known(done or None, name)
    output.answer("disabled", {"name": name, "enabled": False}, json_=json_)


@schedules.command()
@click.argument("name")
@output.as_json
def remove(name: str, *, json_: bool) -> None:
    """Delete a schedule; its tasks stay. One that code declares comes back: disable that."""
    with transaction() as connection:
        done = rows.remove_schedule(connection, name, by=caller())
    _known(done or None, name)
    output.answer("removed", {"name": name, "removed": True}, json_=json_)


@schedules.command()
@click.argument("name", required=False)
@timing
@click.option("--count", "-n", type=click.IntRange(1, 1000), default=5, show_default=True)
@output.as_json
def preview(name: str | None, count: int, *, json_: bool, **given: Any) -> None:
    """Say when a schedule fires next, or when one with these options would. Changes nothing."""
    options = _options(given)
    if bool(options) == (name is not None):
        raise click.UsageError("Give a name, or --cron, --every or --at.")
    with transaction() as connection:
        if name is None:
            shown = rehearsal.preview(connection, count, **options)
        else:
            shown = _known(rehearsal.preview_schedule(connection, name, count), name)
    told = "\n".join([f"{shown.words}.", *map(_shown, shown.instants)])
    output.answer(told, {"words": shown.words, "instants": shown.instants}, json_=json_)


@schedules.command()
@click.argument("name")
@click.argument("start")
@click.argument("end")
@output.as_json
def backfill(name: str, start: str, end: str, *, json_: bool) -> None:
    """Make a task for each instant from START until before END that has none.

    Both are ISO 8601 with a zone, and past. To say it again makes nothing more.
    """
    with transaction() as connection:
        made = rehearsal.backfill_schedule(
            connection, name, moment(start), moment(end), by=caller()
        )
    ids = [int(task_id) for task_id in _known(made, name)]
    output.answer(f"{len(ids)} tasks made", {"name": name, "ids": ids}, json_=json_)


def _options(given: dict[str, Any]) -> Any:
    moments = ("at", "starts_at", "ends_at")
    return {
        word: moment(value) if word in moments else value
        for word, value in given.items()
        if value is not None
    }


def _known(found: Any, name: str) -> Any:
    if found is None:
        click.echo(f"There is no schedule {name}. Run: tasks-app schedules list", err=True)
        sys.exit(1)
    return found


def _tell(made: Schedule, *, json_: bool) -> None:
    words = f"{made.explain()}.\nNext: {_shown(made.next_run_at)}"
    output.answer(words, _fields(made), json_=json_)


def _line(schedule: Schedule) -> list[Any]:
    zone = f" {schedule.zone}" if schedule.kind == "cron" else ""
    when = f"{schedule.kind} {schedule.expression}{zone}"
    state = "yes" if schedule.enabled else "no"
    return [
        *(schedule.name, schedule.task, when, state, schedule.next_run_at, schedule.last_run_at),
        *(schedule.remark or schedule.last_outcome, schedule.declared_in or schedule.changed_by),
    ]


def _fields(schedule: Schedule) -> dict[str, Any]:
    """Return what people want to know of it."""
    try:
        words = schedule.explain()
    except ValueError as error:
        words = str(error)
    return {
        "name": schedule.name,
        "words": words,
        **{word: value for word, value in schedule.plain().items() if word != "options"},
        **json.loads(schedule.options),
        **{
            word: getattr(schedule, word)
            for word in (
                *("next_run_at", "queued_at", "last_run_at", "last_task_id", "last_outcome"),
                *("remark", "declared_in", "changed_by", "created_at"),
            )
        },
    }


def _shown(at: datetime | None) -> str:
    return "never" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
