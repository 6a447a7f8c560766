"""``batch``: instances of jobs; listed, shown, started, stopped; and plans of their sources."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from tasks_app.actions import tasks
from tasks_app.batch import control
from tasks_app.batch.buckets import BucketColumn, rebalance_online
from tasks_app.batch.job import known_job
from tasks_app.batch.step import Step
from tasks_app.batch.validate import split
from tasks_app.cli import output
from tasks_app.cli.commands import add_commands, json_object, options
from tasks_app.cli.database import caller, load_modules, open_engine, transaction, why_option
from tasks_app.domain.batch.records import (
    BatchStep,
    BatchView,
    Figures,
    checked_params,
    figures_of,
    progress_bar,
)
from tasks_app.domain.durations import rough_span
from tasks_app.domain.partition.records import Partition, Plan, StoredPartition, Table
from tasks_app.pool.batch import partition_progress, partitions
from tasks_app.pool.tables import database_now

job_arguments = options(
    click.argument("job"),
    click.argument("params", default="{}"),
    click.option("--step", help="Only this step."),
)


@click.group()
def batch() -> None:
    """Run batch jobs: start, stop, restart, show their steps."""


@batch.command()
@job_arguments
@output.json_option
def validate(job: str, params: str, step: str | None, *, json_: bool) -> None:
    """Split the sources of JOB, and report problems. Starts nothing."""
    plans = _plans(job, params, step)
    words = "\n".join(f"{name}: {_in_words(plan)}" for name, plan in plans)
    output.print_answer(words, _plan_fields(plans), json_=json_)


@batch.command()
@job_arguments
@click.option("--dry-run", is_flag=True, help="Only show. Else the rows of JOB.STEP are replaced.")
@output.json_option
def plan(job: str, params: str, step: str | None, *, dry_run: bool, json_: bool) -> None:
    """Show how JOB would be split.

    Without --dry-run it keeps the plan as partitions that people maintain.
    """
    plans = _plans(job, params, step, keep=not dry_run)
    if json_:
        output.print_json(_plan_fields(plans))
        return
    for name, each in plans:
        click.echo(f"{name}: {_in_words(each)}")
        rows = [[part.number, owns(part), part.rows] for part in each.partitions]
        output.print_table(("no", "owns", "rows"), rows)


@batch.command()
@click.argument("batch_id", type=int)
@click.option("--step", required=True, help="The step that runs.")
@click.option(
    "--divide", type=click.IntRange(2, 1000), required=True, help="Divide each into this many."
)
@why_option
@output.json_option
def replan(batch_id: int, step: str, divide: int, *, json_: bool) -> None:
    """Divide the partitions of a step that have not started."""
    load_modules()
    with transaction() as connection:
        more = control.replan_job(connection, batch_id, step, divide=divide, by=caller())
    fields = {"batch_id": batch_id, "step": step, "more": more}
    output.print_answer(f"{more} partitions more", fields, json_=json_)


@batch.command()
@click.argument("table")
@click.argument("column")
@click.argument("modulus", type=click.IntRange(1, 100_000))
@click.option("--key", default="id", show_default=True, help="The column whose hash it is.")
@output.json_option
def rebalance(table: str, column: str, modulus: int, key: str, *, json_: bool) -> None:
    """Compute the bucket COLUMN of TABLE again, by MODULUS.

    It works in small commits. Called again, it goes on.
    """
    load_modules()
    terminal = sys.stderr.isatty()

    def show_progress(rows: int) -> None:
        if terminal:
            click.echo(f"\r{rows} rows", nl=False, err=True)

    bucket = BucketColumn(Table.named(table, key), column, modulus)
    with open_engine() as engine:
        written = rebalance_online(engine, bucket, show_progress)
    words = f"{written} rows written, {column} is by {modulus} now"
    fields = {"table": table, "column": column, "modulus": modulus, "written": written}
    output.print_answer(words, fields, json_=json_)


def owns(part: Partition) -> str:
    return str(part).partition(" (")[2].removesuffix(")")


def _plans(
    job: str, params: str, only: str | None, *, keep: bool = False
) -> list[tuple[str, Plan]]:
    load_modules()
    known = known_job(job)
    given = known.given(checked_params(known.name, known.params, json_object(params)))
    chosen: list[Step] = [step for step in known.steps.values() if only in {None, step.name}]
    if not chosen:
        raise click.UsageError(f"Job {job} has the steps {', '.join(known.steps)}.")
    made = []
    for step in chosen:
        with transaction() as connection:
            plan = split(connection, step, given)
            if keep:
                program = f"{known.name}.{step.name}"
                partitions.remove(connection, program, started=True)
                partitions.insert(connection, program, plan)
            else:
                connection.rollback()
        made.append((step.name, plan))
    return made


def _plan_fields(plans: list[tuple[str, Plan]]) -> list[dict[str, Any]]:
    return [{"step": name, "plan": plan} for name, plan in plans]


def _in_words(plan: Plan) -> str:
    rows = "" if plan.rows is None else f", {plan.rows} rows"
    warned = "".join(f"\n  {warning}" for warning in plan.warnings)
    return f"{len(plan.partitions)} partitions by {plan.method}{rows}, {plan.seconds:.2f} s{warned}"


@batch.command("list")
@click.option("--job", help="Only instances of this job.")
@click.option("--status", help="Such as RUNNING, FAILED or COMPLETED.")
@click.option(
    "--first",
    "-n",
    "most",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="At most this many, the newest.",
)
@output.wide_option
@output.json_option
def list_(job: str | None, status: str | None, most: int, *, wide: bool, json_: bool) -> None:
    """List instances, newest first."""
    with transaction() as connection:
        found = control.list_jobs(connection, job=job, status=status, most=most)
        now = database_now(connection)
    if json_:
        output.print_json(found)
        return
    lines = [
        [
            *(str(each.id), str(each.status), each.job, str(each.run)),
            *(output.format_instant(at, now, wide=wide) for at in (each.started_at, each.ended_at)),
            output.cell(each.params),
        ]
        for each in found
    ]
    columns = ("id", "status", "job", "run", "began", "ended", "params")
    errors = [each.error or "" for each in found]
    output.print_rows(columns, lines, errors, remark="error", cut=("job", "params"), wide=wide)


@batch.command()
@click.argument("batch_id", type=int)
@output.json_option
def show(batch_id: int, *, json_: bool) -> None:
    """Show an instance, its steps, and their progress."""
    load_modules()  # the job's declaration has the order of its steps
    with transaction() as connection:
        view = _existing(control.get_job(connection, batch_id), batch_id)
        parts = partitions.find_by_batch(connection, batch_id)
    figures = {
        step.step: figures_of([p for p in parts if p.step == step.step], view.at)
        for step in view.steps
    }
    names = ("id", "job", "params", "status", "run", "created_at", "started_at", "ended_at")
    fields = {name: getattr(view.batch, name) for name in (*names, "error")}
    fields["alive"] = view.alive
    if json_:
        output.print_json(
            {
                "batch": fields,
                "steps": view.steps,
                "tallies": {name: tally._asdict() for name, tally in view.tallies.items()},
                "figures": {name: each._asdict() for name, each in figures.items()},
            }
        )
        return
    lost = f"none of its tasks is left; go on with: tasks-app batch restart {view.batch.id}"
    output.print_fields([*fields.items(), ("lost", lost if view.is_lost else None)])
    click.echo()
    columns = ("step", "status", "progress", "read", "skipped", "rows/s", "left", "skew", "error")
    lines = [_step_line(each, figures[each.step], view) for each in view.steps]
    output.print_table(columns, lines)


@batch.command()
@click.argument("job")
@click.argument("params", default="{}")
@click.option("--no-restart", is_flag=True, help="Refuse if the instance is there already.")
@output.json_option
def start(job: str, params: str, *, no_restart: bool, json_: bool) -> None:
    """Start JOB with PARAMS, a JSON object. With the same parameters an incomplete one restarts."""
    load_modules()
    with transaction() as connection:
        begun = control.start_job(connection, job, json_object(params), restart=not no_restart)
    words = f"{begun.batch_id}{'' if begun.new else f'  (goes on, run {begun.run})'}"
    output.print_answer(words, begun._asdict(), json_=json_)


add_commands(batch, tasks)


@batch.command("partitions")
@click.argument("batch_id", type=int)
@click.option("--step", help="Only this step.")
@click.option("--skipped", is_flag=True, help="Show the rows that were left out instead.")
@output.json_option
def show_partitions(batch_id: int, step: str | None, *, skipped: bool, json_: bool) -> None:
    """Show the partitions of an instance, or the rows left out."""
    with transaction() as connection:
        _existing(control.get_job(connection, batch_id), batch_id)
        found: Sequence[Any] = (
            partition_progress.find_skips(connection, batch_id, step=step, most=10_000)
            if skipped
            else [
                p for p in partitions.find_by_batch(connection, batch_id) if step in {None, p.step}
            ]
        )
    if json_:
        output.print_json(found)
    elif skipped:
        columns = ("step", "partition_no", "key", "reason", "at")
        output.print_table(columns, [[getattr(each, name) for name in columns] for each in found])
    else:
        names = ("step", "no", "owns", "status", "progress", "read", "written", "skipped")
        output.print_table((*names, "task", "error"), [_part_line(each) for each in found])


def _existing(view: BatchView | None, batch_id: int) -> BatchView:
    if view is None:
        output.refuse(f"There is no batch {batch_id}. Run: tasks-app batch list")
    return view


def _step_line(step: BatchStep, figures: Figures, view: BatchView) -> list[Any]:
    tally = view.tallies.get(step.step)
    done = f"{tally.completed}/{tally.total} " if tally else ""
    return [
        step.step,
        step.status,
        f"{progress_bar(figures.fraction)} {done}" if tally else "",
        figures.read,
        tally.counts.skipped if tally else 0,
        None if figures.per_second is None else round(figures.per_second),
        None if figures.left is None or step.ended_at else rough_span(figures.left),
        None if figures.skew is None else f"{figures.skew:.1f}",
        step.error,
    ]


def _part_line(part: StoredPartition) -> list[Any]:
    estimated, counts = part.partition.rows, part.counts
    fraction = 1.0 if part.status == "COMPLETED" else counts.read / estimated if estimated else None
    return [
        part.step,
        part.partition.number,
        owns(part.partition),
        part.status,
        progress_bar(None if fraction is None else min(1.0, fraction), 10),
        *(counts.read, counts.written, counts.skipped, part.task_id, part.error),
    ]
