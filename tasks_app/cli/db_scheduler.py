"""``db-scheduler``: the database fires schedules, rescues, sweeps, creates and drops partitions."""

from __future__ import annotations

import sys

import click

from tasks_app.cli import output
from tasks_app.cli.database import open_database, settings
from tasks_app.domain.durations import count
from tasks_app.domain.errors import EXIT_NO
from tasks_app.pool.db_scheduler.functions import Installed
from tasks_app.pool.db_scheduler.running import SqlTask
from tasks_app.runtime.handlers.registry import HANDLERS, load_handlers
from tasks_app.runtime.schedules.db_scheduler import DbScheduler, sql_tasks_of, unfit_sql_tasks

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
    load_handlers(settings().modules)
    return sql_tasks_of(HANDLERS, settings(), leave=leave)
