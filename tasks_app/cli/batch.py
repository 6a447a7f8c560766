"""``batch``: instances of jobs; listed, shown, started, stopped; and plans of their sources."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from tasks_app.batch import control
from tasks_app.batch.job import known_job
from tasks_app.batch.split import split
from tasks_app.batch.step import Step
from tasks_app.cli import output
from tasks_app.cli.database import caller, settings, transaction
from tasks_app.cli.tasks import json_object
from tasks_app.domain.batch.figures import Figures, bar, figures_of
from tasks_app.domain.batch.identity import checked_params
from tasks_app.domain.batch.records import Batch, BatchStep, BatchView
from tasks_app.domain.durations import rough
from tasks_app.domain.partition.records import Partition, Plan, StoredPartition
from tasks_app.pool.batch import browse, skips, store
from tasks_app.runtime.registry import load_handlers

_LISTED = ("id", "job", "params", "status", "run", "started_at", "ended_at", "error")
_STEPS = ("step", "status", "progress", "read", "skipped", "rows/s", "left", "skew", "error")
_PARTS = ("step", "no", "owns", "status", "progress", "read", "written", "skipped", "task", "error")
_PLANNED = ("no", "owns", "rows")


@click.group()
def batch() -> None:
    """Run batch jobs: start, stop, restart, and look at their steps and partitions."""


@batch.command("list")
@click.option("--job", help="Only instances of this job.")
@click.option("--status", help="Such as RUNNING, FAILED or COMPLETED.")
@click.option("--first", "-n", "most", type=click.IntRange(1, 10_000), default=50)
@output.as_json
def list_(job: str | None, status: str | None, most: int, *, json_: bool) -> None:
    """List instances, newest first."""
    with transaction() as connection:
        found = control.list_jobs(connection, job=job, status=status, most=most)
    if json_:
        output.print_json(found)
        return
    output.print_table(_LISTED, [[getattr(each, name) for name in _LISTED] for each in found])


@batch.command()
@click.argument("batch_id", type=int)
@output.as_json
def show(batch_id: int, *, json_: bool) -> None:
    """Show an instance, its steps, and how far they are."""
    with transaction() as connection:
        view = control.get_job(connection, batch_id)
        parts = browse.of_batch(connection, batch_id)
    known = _known(view, batch_id)
    figures = {
        step.step: figures_of([p for p in parts if p.step == step.step], known.at)
        for step in known.steps
    }
    if json_:
        output.print_json(
            {**_fields(known), "figures": {k: v._asdict() for k, v in figures.items()}}
        )
        return
    output.print_fields(_fields(known)["batch"].items())
    output.print_fields([("lost", _lost(known))])
    click.echo()
    output.print_table(
        _STEPS, [_step_line(each, figures[each.step], known) for each in known.steps]
    )


@batch.command()
@click.argument("job")
@click.argument("params", default="{}")
@click.option("--no-restart", is_flag=True, help="Refuse if the instance is there already.")
def start(job: str, params: str, *, no_restart: bool) -> None:
    """Start JOB with PARAMS, a JSON object. The same parameters restart what is not complete."""
    load_handlers(settings().modules)
    with transaction() as connection:
        begun = control.start_job(connection, job, json_object(params), restart=not no_restart)
    click.echo(f"{begun.batch_id}{'' if begun.new else f'  (goes on, run {begun.run})'}")


@batch.command()
@click.argument("batch_id", type=int)
def stop(batch_id: int) -> None:
    """Stop an instance at the next chunks; a restart goes on there."""
    with transaction() as connection:
        left = control.stop_job(connection, batch_id, by=caller())
    click.echo(f"stopping, {left} tasks run still" if left else "stopping")


@batch.command()
@click.argument("batch_id", type=int)
@click.option(
    "--divide", type=click.IntRange(2, 1000), help="Divide what has not started by so much."
)
def restart(batch_id: int, divide: int | None) -> None:
    """Let an instance go on that has failed or was stopped; what is complete is not done again."""
    load_handlers(settings().modules)
    with transaction() as connection:
        begun = control.restart_job(connection, batch_id, divide=divide, by=caller())
    click.echo(f"goes on, run {begun.run}")


@batch.command()
@click.argument("batch_id", type=int)
def abandon(batch_id: int) -> None:
    """Never let an instance go on. What it did stays; its parameters are free again."""
    with transaction() as connection:
        control.abandon_job(connection, batch_id, by=caller())
    click.echo("abandoned")


@batch.command()
@click.argument("batch_id", type=int)
@click.option("--step", help="Only this step.")
@click.option("--skipped", is_flag=True, help="Show the rows that were left out instead.")
@output.as_json
def partitions(batch_id: int, step: str | None, *, skipped: bool, json_: bool) -> None:
    """Show the partitions of an instance, or the rows that they left out."""
    with transaction() as connection:
        _known(control.get_job(connection, batch_id), batch_id)
        found: Sequence[Any] = (
            skips.find(connection, batch_id, step=step, most=10_000)
            if skipped
            else [p for p in browse.of_batch(connection, batch_id) if step in {None, p.step}]
        )
    if json_:
        output.print_json(found)
    elif skipped:
        columns = ("step", "partition_no", "key", "reason", "at")
        output.print_table(columns, [[getattr(each, name) for name in columns] for each in found])
    else:
        output.print_table(_PARTS, [_part_line(each) for each in found])


@batch.command()
@click.argument("job")
@click.argument("params", default="{}")
@click.option("--step", help="Only this step.")
def validate(job: str, params: str, step: str | None) -> None:
    """Split the sources of JOB as a start would, and say what is wrong. Starts nothing."""
    for name, plan in _plans(job, params, step):
        click.echo(f"{name}: {_in_words(plan)}")


@batch.command()
@click.argument("job")
@click.argument("params", default="{}")
@click.option("--step", help="Only this step.")
@click.option("--dry-run", is_flag=True, help="Only show. Else the rows of JOB.STEP are replaced.")
@output.as_json
def plan(job: str, params: str, step: str | None, *, dry_run: bool, json_: bool) -> None:
    """Show how JOB would be split, or keep that as partitions that people maintain."""
    made = _plans(job, params, step, keep=not dry_run)
    if json_:
        output.print_json([{"step": name, "plan": plan} for name, plan in made])
        return
    for name, each in made:
        click.echo(f"{name}: {_in_words(each)}")
        output.print_table(_PLANNED, [[p.number, _owns(p), p.rows] for p in each.partitions])


def _plans(
    job: str, params: str, only: str | None, *, keep: bool = False
) -> list[tuple[str, Plan]]:
    load_handlers(settings().modules)
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
                store.remove(connection, program, started=True)
                store.insert(connection, program, plan)
            else:
                connection.rollback()
        made.append((step.name, plan))
    return made


def _known(view: BatchView | None, batch_id: int) -> BatchView:
    if view is None:
        click.echo(f"There is no batch {batch_id}. Run: tasks-app batch list", err=True)
        sys.exit(1)
    return view


def _lost(view: BatchView) -> str | None:
    if not view.is_lost:
        return None
    return f"none of its tasks is left; go on with: tasks-app batch restart {view.batch.id}"


def _fields(view: BatchView) -> dict[str, Any]:
    shown: Batch = view.batch
    names = (
        "id",
        "job",
        "params",
        "status",
        "run",
        "created_at",
        "started_at",
        "ended_at",
        "error",
    )
    return {
        "batch": {name: getattr(shown, name) for name in names} | {"alive": view.alive},
        "steps": view.steps,
        "tallies": {name: tally._asdict() for name, tally in view.tallies.items()},
    }


def _step_line(step: BatchStep, figures: Figures, view: BatchView) -> list[Any]:
    tally = view.tallies.get(step.step)
    done = f"{tally.completed}/{tally.total} " if tally else ""
    return [
        step.step,
        step.status,
        f"{bar(figures.fraction)} {done}" if tally else "",
        figures.read,
        tally.counts.skipped if tally else 0,
        None if figures.per_second is None else round(figures.per_second),
        None if figures.left is None or step.ended_at else rough(figures.left),
        None if figures.skew is None else f"{figures.skew:.1f}",
        step.error,
    ]


def _part_line(part: StoredPartition) -> list[Any]:
    estimated, counts = part.partition.rows, part.counts
    fraction = 1.0 if part.status == "COMPLETED" else counts.read / estimated if estimated else None
    return [
        part.step,
        part.partition.number,
        _owns(part.partition),
        part.status,
        bar(None if fraction is None else min(1.0, fraction), 10),
        *(counts.read, counts.written, counts.skipped, part.task_id, part.error),
    ]


def _owns(part: Partition) -> str:
    """Return what a partition owns, without its number."""
    return str(part).partition(" (")[2].removesuffix(")")


def _in_words(plan: Plan) -> str:
    rows = "" if plan.rows is None else f", {plan.rows} rows"
    warned = "".join(f"\n  {warning}" for warning in plan.warnings)
    return f"{len(plan.partitions)} partitions by {plan.method}{rows}, {plan.seconds:.2f} s{warned}"
