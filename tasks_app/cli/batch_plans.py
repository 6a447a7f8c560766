"""``batch plan`` and the like: how sources are split, before a job runs and while it does."""

from __future__ import annotations

import sys
from typing import Any

import click

from tasks_app.batch import control
from tasks_app.batch.buckets import BucketColumn, rebalance_online
from tasks_app.batch.job import known_job
from tasks_app.batch.split import split
from tasks_app.batch.step import Step
from tasks_app.cli import output
from tasks_app.cli.arguments import json_object
from tasks_app.cli.database import as_why, caller, connected, settings, transaction
from tasks_app.domain.batch.identity import checked_params
from tasks_app.domain.partition.records import Partition, Plan
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch import partitions
from tasks_app.runtime.handlers.registry import load_handlers

_PLANNED = ("no", "owns", "rows")


@click.command()
@click.argument("job")
@click.argument("params", default="{}")
@click.option("--step", help="Only this step.")
@output.as_json
def validate(job: str, params: str, step: str | None, *, json_: bool) -> None:
    """Split the sources of JOB, and say what is wrong. Starts nothing."""
    made = _plans(job, params, step)
    told = "\n".join(f"{name}: {_in_words(plan)}" for name, plan in made)
    output.answer(told, _fields(made), json_=json_)


@click.command()
@click.argument("job")
@click.argument("params", default="{}")
@click.option("--step", help="Only this step.")
@click.option("--dry-run", is_flag=True, help="Only show. Else the rows of JOB.STEP are replaced.")
@output.as_json
def plan(job: str, params: str, step: str | None, *, dry_run: bool, json_: bool) -> None:
    """Show how JOB would be split.

    Without --dry-run it keeps the plan as partitions that people maintain.
    """
    made = _plans(job, params, step, keep=not dry_run)
    if json_:
        output.print_json(_fields(made))
        return
    for name, each in made:
        click.echo(f"{name}: {_in_words(each)}")
        output.print_table(_PLANNED, [[p.number, owns(p), p.rows] for p in each.partitions])


@click.command()
@click.argument("batch_id", type=int)
@click.option("--step", required=True, help="The step that runs.")
@click.option(
    "--divide", type=click.IntRange(2, 1000), required=True, help="Into so many each is divided."
)
@as_why
@output.as_json
def replan(batch_id: int, step: str, divide: int, *, json_: bool) -> None:
    """Divide the partitions of a step that have not started."""
    load_handlers(settings().modules)
    with transaction() as connection:
        more = control.replan_job(connection, batch_id, step, divide=divide, by=caller())
    told = {"batch_id": batch_id, "step": step, "more": more}
    output.answer(f"{more} partitions more", told, json_=json_)


@click.command()
@click.argument("table")
@click.argument("column")
@click.argument("modulus", type=click.IntRange(1, 100_000))
@click.option("--key", default="id", show_default=True, help="The column whose hash it is.")
@output.as_json
def rebalance(table: str, column: str, modulus: int, key: str, *, json_: bool) -> None:
    """Compute the bucket COLUMN of TABLE anew, by MODULUS.

    It works in small commits. Called again, it goes on.
    """
    load_handlers(settings().modules)
    shown = sys.stderr.isatty()

    def told(rows: int) -> None:
        if shown:
            click.echo(f"\r{rows} rows", nl=False, err=True)

    with connected() as engine:
        written = rebalance_online(
            engine, BucketColumn(Table.named(table, key), column, modulus), told
        )
    output.answer(
        f"{written} rows written, {column} is by {modulus} now",
        {"table": table, "column": column, "modulus": modulus, "written": written},
        json_=json_,
    )


def owns(part: Partition) -> str:
    """Return what a partition owns, without its number."""
    return str(part).partition(" (")[2].removesuffix(")")


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
                partitions.remove(connection, program, started=True)
                partitions.insert(connection, program, plan)
            else:
                connection.rollback()
        made.append((step.name, plan))
    return made


def _fields(made: list[tuple[str, Plan]]) -> list[dict[str, Any]]:
    return [{"step": name, "plan": plan} for name, plan in made]


def _in_words(plan: Plan) -> str:
    rows = "" if plan.rows is None else f", {plan.rows} rows"
    warned = "".join(f"\n  {warning}" for warning in plan.warnings)
    return f"{len(plan.partitions)} partitions by {plan.method}{rows}, {plan.seconds:.2f} s{warned}"
