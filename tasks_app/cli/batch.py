"""``batch``: instances of jobs; listed, shown, started, stopped; and plans of their sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from tasks_app.actions import work
from tasks_app.batch import control
from tasks_app.cli import listing, output
from tasks_app.cli.acting import add_commands
from tasks_app.cli.arguments import json_object
from tasks_app.cli.batch_plans import owns, plan, rebalance, replan, validate
from tasks_app.cli.database import settings, transaction
from tasks_app.domain.batch.records import BatchStep, BatchView
from tasks_app.domain.batch.statistics import Figures, bar, figures_of
from tasks_app.domain.explain.words import rough
from tasks_app.domain.partition.records import StoredPartition
from tasks_app.pool.batch import partitions as parts_of
from tasks_app.pool.batch import skips
from tasks_app.pool.connection.clock import instant
from tasks_app.runtime.handlers.registry import load_handlers

_LISTED = ("id", "status", "job", "run", "began", "ended", "params")
_SHOWN = (
    *("id", "job", "params", "status", "run", "created_at"),
    *("started_at", "ended_at", "error"),
)
_STEPS = ("step", "status", "progress", "read", "skipped", "rows/s", "left", "skew", "error")
_PARTS = ("step", "no", "owns", "status", "progress", "read", "written", "skipped", "task", "error")


@click.group()
def batch() -> None:
    """Run batch jobs: start, stop, restart, look at their steps."""


for command in (validate, plan, replan, rebalance):
    batch.add_command(command)


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
    help="At most so many, the newest.",
)
@listing.as_wide
@output.as_json
def list_(job: str | None, status: str | None, most: int, *, wide: bool, json_: bool) -> None:
    """List instances, newest first."""
    with transaction() as connection:
        found = control.list_jobs(connection, job=job, status=status, most=most)
        now = instant(connection)
    if json_:
        output.print_json(found)
        return
    lines = [
        [
            *(str(each.id), str(each.status), each.job, str(each.run)),
            *(listing.at(at, now, wide=wide) for at in (each.started_at, each.ended_at)),
            output.cell(each.params),
        ]
        for each in found
    ]
    errors = [each.error or "" for each in found]
    listing.echo(_LISTED, lines, errors, remark="error", cut=("job", "params"), wide=wide)


@batch.command()
@click.argument("batch_id", type=int)
@output.as_json
def show(batch_id: int, *, json_: bool) -> None:
    """Show an instance, its steps, and how far they are."""
    load_handlers(settings().modules)  # the job's declaration says the order of its steps
    with transaction() as connection:
        view = control.get_job(connection, batch_id)
        parts = parts_of.of_batch(connection, batch_id)
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
@output.as_json
def start(job: str, params: str, *, no_restart: bool, json_: bool) -> None:
    """Start JOB with PARAMS, a JSON object. The same parameters restart what is not complete."""
    load_handlers(settings().modules)
    with transaction() as connection:
        begun = control.start_job(connection, job, json_object(params), restart=not no_restart)
    told = f"{begun.batch_id}{'' if begun.new else f'  (goes on, run {begun.run})'}"
    output.answer(told, begun._asdict(), json_=json_)


add_commands(batch, work)


@batch.command()
@click.argument("batch_id", type=int)
@click.option("--step", help="Only this step.")
@click.option("--skipped", is_flag=True, help="Show the rows that were left out instead.")
@output.as_json
def partitions(batch_id: int, step: str | None, *, skipped: bool, json_: bool) -> None:
    """Show the partitions of an instance, or the rows left out."""
    with transaction() as connection:
        _known(control.get_job(connection, batch_id), batch_id)
        found: Sequence[Any] = (
            skips.find(connection, batch_id, step=step, most=10_000)
            if skipped
            else [p for p in parts_of.of_batch(connection, batch_id) if step in {None, p.step}]
        )
    if json_:
        output.print_json(found)
    elif skipped:
        columns = ("step", "partition_no", "key", "reason", "at")
        output.print_table(columns, [[getattr(each, name) for name in columns] for each in found])
    else:
        output.print_table(_PARTS, [_part_line(each) for each in found])


def _known(view: BatchView | None, batch_id: int) -> BatchView:
    if view is None:
        output.refuse(f"There is no batch {batch_id}. Run: tasks-app batch list")
    return view


def _lost(view: BatchView) -> str | None:
    if not view.is_lost:
        return None
    return f"none of its tasks is left; go on with: tasks-app batch restart {view.batch.id}"


def _fields(view: BatchView) -> dict[str, Any]:
    return {
        "batch": {name: getattr(view.batch, name) for name in _SHOWN} | {"alive": view.alive},
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
        owns(part.partition),
        part.status,
        bar(None if fraction is None else min(1.0, fraction), 10),
        *(counts.read, counts.written, counts.skipped, part.task_id, part.error),
    ]
