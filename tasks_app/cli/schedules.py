"""``schedules`` and ``db-scheduler``: the schedules, and pg_cron that fires them."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

import click

from tasks_app.actions import schedules as actions
from tasks_app.cli import output
from tasks_app.cli.commands import add_commands, json_object, options, parse_instant
from tasks_app.cli.database import (
    caller,
    load_modules,
    open_database,
    settings,
    transaction,
    why_option,
)
from tasks_app.cli.task_moves import suggest_name
from tasks_app.domain.durations import count, format_duration, to_the_second
from tasks_app.domain.errors import EXIT_NO
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.pool.db_scheduler.functions import Installed
from tasks_app.pool.db_scheduler.running import SqlTask
from tasks_app.pool.tables import database_now
from tasks_app.runtime.api.tasks import get_task
from tasks_app.runtime.encryption.values import masks
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.schedules import preview as previews
from tasks_app.runtime.schedules import schedules as rows
from tasks_app.runtime.schedules.db_scheduler import DbScheduler, sql_tasks_of, unfit_sql_tasks

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
        word: parse_instant(value) if word in moments else value
        for word, value in given.items()
        if value is not None
    }


def existing(found: Any, name: str) -> Any:
    if found is None:
        output.refuse(f"There is no schedule {name}. Run: tasks-app schedules list")
    return found


def print_schedule(made: Schedule, *, json_: bool) -> None:
    words = f"{made.explain()}.\nNext: {instant_words(made.next_run_at)}"
    output.print_answer(words, fields(made), json_=json_)


def line(schedule: Schedule, now: datetime, *, wide: bool) -> list[str]:
    zone = f" {schedule.zone}" if schedule.kind == "cron" else ""
    when = f"{schedule.kind} {schedule.expression}{zone}"
    instants = schedule.next_run_at, schedule.last_run_at
    outcome, source = schedule.last_outcome, schedule.declared_in or schedule.changed_by
    return [
        *(schedule.name, schedule.task, when, "yes" if schedule.enabled else "no"),
        *(output.format_instant(at, now, wide=wide) for at in instants),
        *("" if schedule.remark else output.cell(outcome), output.cell(source)),
    ]


def fields(schedule: Schedule) -> dict[str, Any]:
    try:
        words = schedule.explain()
    except ValueError as error:
        words = str(error)
    names = (
        *("next_run_at", "queued_at", "last_run_at", "last_task_id", "last_outcome"),
        *("remark", "declared_in", "changed_by", "created_at"),
    )
    return {
        "name": schedule.name,
        "words": words,
        **{word: value for word, value in schedule.plain().items() if word != "options"},
        "payload": masks().value(schedule.task, json.loads(schedule.payload)),
        **json.loads(schedule.options),
        **{word: getattr(schedule, word) for word in names},
    }


def instant_words(at: datetime | None) -> str:
    return "never" if at is None else to_the_second(at)


@click.group()
def schedules() -> None:
    """Create tasks by the clock: list, add, preview, backfill, run."""


@schedules.command()
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
@output.json_option
def preview(name: str | None, number: int, *, json_: bool, **given: Any) -> None:
    """Print when a schedule fires, or one with these options would. Changes nothing."""
    options = read_options(given)
    if bool(options) == (name is not None):
        raise click.UsageError("Give a name, or --cron, --every or --at.")
    with transaction() as connection:
        if name is None:
            shown = previews.preview(connection, number, **options)
        else:
            shown = existing(previews.preview_schedule(connection, name, number), name)
    words = "\n".join([f"{shown.words}.", *map(instant_words, shown.instants)])
    output.print_answer(words, {"words": shown.words, "instants": shown.instants}, json_=json_)


@schedules.command()
@click.argument("name")
@click.argument("start")
@click.argument("end")
@why_option
@output.json_option
def backfill(name: str, start: str, end: str, *, json_: bool) -> None:
    """Create a task for each instant from START to END that has none.

    Both are ISO 8601 with a zone, and past; END itself is left out. A repetition creates no second
    task.
    """
    with transaction() as connection:
        made = previews.backfill_schedule(
            connection, name, parse_instant(start), parse_instant(end), by=caller()
        )
    ids = [int(task_id) for task_id in existing(made, name)]
    words = f"{count(len(ids), 'task')} created"
    output.print_answer(words, {"name": name, "ids": ids}, json_=json_)


@schedules.command("list")
@output.wide_option
@output.json_option
def list_(*, wide: bool, json_: bool) -> None:
    """List all schedules, with their next and last instants."""
    with transaction() as connection:
        found, now = rows.list_schedules(connection), database_now(connection)
    if json_:
        output.print_json([fields(schedule) for schedule in found])
        return
    output.print_rows(
        ("name", "task", "when", "enabled", "next", "last", "outcome", "from"),
        [line(schedule, now, wide=wide) for schedule in found],
        [schedule.remark or "" for schedule in found],
        remark="remark",
        cut=("name", "task", "when", "from"),
        wide=wide,
    )


@schedules.command()
@click.argument("name")
@output.json_option
def show(name: str, *, json_: bool) -> None:
    """Show one schedule, also in words."""
    with transaction() as connection:
        found = existing(rows.get_schedule(connection, name), name)
        last = get_task(connection, found.last_task_id) if found.last_task_id else None
    shown = {**fields(found), "last_task_state": last and last.state}
    if json_:
        output.print_json(shown)
    else:
        output.print_fields({**shown, "jitter": format_duration(found.jitter)}.items())


@schedules.command()
@click.argument("name")
@click.argument("task")
@click.argument("payload", default="{}")
@timing
@policies
@why_option
@output.json_option
def add(name: str, task: str, payload: str, *, json_: bool, **given: Any) -> None:
    """Add a schedule of TASK with PAYLOAD, a JSON object."""
    load_modules()
    with transaction() as connection:
        made = rows.create_schedule(
            connection, name, task, json_object(payload), by=caller(), **read_options(given)
        )
    suggest_name(task, f"remove the schedule: tasks-app schedules remove {name}")
    print_schedule(made, json_=json_)


@schedules.command()
@click.argument("name")
@click.option("--payload", help="A JSON object.")
@timing
@policies
@why_option
@output.json_option
def change(name: str, payload: str | None, *, json_: bool, **given: Any) -> None:
    """Change what is given. Code that declares the schedule leaves the change alone."""
    load_modules()
    new = None if payload is None else json_object(payload)
    with transaction() as connection:
        changed = rows.change_schedule(connection, name, new, by=caller(), **read_options(given))
    print_schedule(existing(changed, name), json_=json_)


add_commands(schedules, actions)


_where = click.option(
    "--cron-database", help="The database that has pg_cron, if it is not that of the tasks."
)


@click.group("db-scheduler")
def db_scheduler() -> None:
    """Let pg_cron fire schedules, without beat."""


@db_scheduler.command()
@_where
@click.option("--functions-only", is_flag=True, help="Create no jobs: you call the functions.")
@click.option("--leave-unfit", is_flag=True, help="Beat or a worker fires what pg_cron cannot.")
@click.option("--sql-tasks", is_flag=True, help="Also run the tasks in SQL of TASKS_APP_IMPORTS.")
@output.json_option
def install(
    *,
    cron_database: str | None,
    functions_only: bool,
    leave_unfit: bool,
    sql_tasks: bool,
    json_: bool,
) -> None:
    """Create the functions, and jobs that call them.

    Each schedule has a job, at its own times. Run this again after each upgrade, and after you add,
    change or remove a schedule. Connect as the owner of the tables: the jobs run as this role.
    Exit 2: pg_cron cannot fire a schedule, or there is no pg_cron; then nothing is changed.
    """
    tasks = _sql_tasks(leave=leave_unfit) if sql_tasks else None
    with open_database() as database:
        scheduler = DbScheduler(settings(), database, cron_database)
        jobs = scheduler.install(with_jobs=not functions_only, leave=leave_unfit, tasks=tasks)
    first = "To be called:" if functions_only else "Called by pg_cron:"
    words = "\n".join((first, *(f"  {job.when}  {job.command}" for job in jobs)))
    fields = {"calls": [job._asdict() for job in jobs], "jobs": not functions_only}
    output.print_answer(words, fields, json_=json_)


@db_scheduler.command()
@_where
@output.json_option
def status(*, cron_database: str | None, json_: bool) -> None:
    """Show what is installed, and how the last run of each job ended.

    Exit 1: nothing is installed, or there is a problem.
    """
    with open_database() as database:
        scheduler = DbScheduler(settings(), database, cron_database)
        tasks = _sql_tasks(leave=True)
        state = scheduler.status(tasks, unfit_sql_tasks(HANDLERS, settings()))
    if json_:
        output.print_json(state)
    else:
        where = cron_database or "the database of the tasks"
        cron = f"pg_cron {state.pg_cron}" if state.pg_cron else f"no pg_cron in {where}"
        click.echo(f"functions: {state.functions}; {cron}; {count(len(state.jobs), 'job')}")
        if state.jobs:
            output.print_table(
                ("duty", "role", "last run", "ended", "message"),
                [(j.duty, j.role, j.last_at, j.status, j.message) for j in state.jobs],
            )
        for name, why in state.not_fired.items():
            click.echo(f"{name} is left to beat or a worker: {why}")
        for name, why in state.not_carried_out.items():
            click.echo(f"{name} is left to workers: {why}")
        for line in state.trouble:
            click.echo(line, err=True)
    sys.exit(EXIT_NO if state.trouble or state.functions is Installed.NO else 0)


@db_scheduler.command()
@_where
@output.json_option
def remove(*, cron_database: str | None, json_: bool) -> None:
    """Remove the jobs and the functions. Tasks and schedules stay."""
    with open_database() as database:
        jobs, functions = DbScheduler(settings(), database, cron_database).remove()
    words = f"{count(jobs, 'job')} and {count(functions, 'function')} removed"
    output.print_answer(words, {"jobs": jobs, "functions": functions}, json_=json_)


def _sql_tasks(*, leave: bool) -> list[SqlTask]:
    load_modules()
    return sql_tasks_of(HANDLERS, settings(), leave=leave)
