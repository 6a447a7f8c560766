"""``errors``: the error pool by cause; requeue it in stages, mark it as known."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import click
from sqlalchemy import Engine

from tasks_app.actions import tasks as task_actions
from tasks_app.cli import output
from tasks_app.cli.commands import DONE_FIELDS, add_commands, fingerprint_digits, parse_instant
from tasks_app.cli.database import caller, open_engine, settings, transaction, why_option
from tasks_app.domain.durations import count, parse_duration
from tasks_app.domain.errors import EXIT_NO
from tasks_app.monitor.pages.errors import causes, error_page
from tasks_app.pool.error_groups import MOST_WITHOUT, ErrorGroup, count_without_fingerprint
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import database_now
from tasks_app.runtime.api.bulk import STAGES, foresee_bulk, requeue_errors
from tasks_app.runtime.api.errors import fill_fingerprints, mark_error_known

MOST_BUSY = 3  # hours of a cause that are shown: a line of 80 columns holds no more


@click.group(invoke_without_command=True)
@click.option("--name", help="Only tasks of this name.")
@click.option("--queue", help="Only this queue.")
@output.most_option(20)
@output.wide_option
@output.json_option
@click.pass_context
def errors(ctx: click.Context, /, *, wide: bool, json_: bool, **filters: Any) -> None:
    """Group the error pool by cause, most tasks first.

    "first" is the oldest failure of those that are still there, or the first that was recorded.
    """
    if ctx.invoked_subcommand is not None:
        return
    with transaction() as connection:
        found, now = causes(connection, **filters), database_now(connection)
        without = count_without_fingerprint(connection)
    if json_:
        output.print_json([asdict(group) for group in found])
    elif found:
        columns = ("fingerprint", "tasks", "first", "last", "names", "queues", "known by")
        lines = [_line(group, now, wide=wide) for group in found]
        remarks = [group.error for group in found]
        output.print_rows(
            columns, lines, remarks, remark="error", cut=("names", "queues", "known by"), wide=wide
        )
    else:
        click.echo("No task with a fingerprint is in the error pool.")
    if without:
        some = (
            f"more than {MOST_WITHOUT} tasks" if without > MOST_WITHOUT else count(without, "task")
        )
        output.print_text(
            f"Left out: {some} without a fingerprint. Run: tasks-app errors fill", err=True
        )


@errors.command()
@click.argument("fingerprint")
@output.most_option(10, "Tasks to list.")
@output.json_option
def show(fingerprint: str, most: int, *, json_: bool) -> None:
    """Show one cause, its newest error and its newest tasks."""
    with transaction() as connection:
        page = error_page(connection, fingerprint_digits(fingerprint), most=most)
    if page is None:
        output.refuse(f"No failed task has {fingerprint:.40}. Run: tasks-app errors")
    group, sample, tasks = page.group, page.sample, page.tasks
    if json_:
        output.print_json({**asdict(group), "sample": sample, "tasks": tasks})
        return
    fields = asdict(group) | {"hours": _busy(group.hours)}
    output.print_fields((word, value) for word, value in fields.items() if value != [])
    if sample is not None and sample.traceback:
        click.echo(f"\n{output.cell(sample.traceback.rstrip())}\n")
    output.print_table(
        ("id", "name", "queue", "biz_key", "failed at"),
        [(task.id, task.name, task.queue, task.biz_key, task.finished_at) for task in tasks],
    )


@errors.command()
@click.argument("fingerprint")
@click.option("--first", type=click.IntRange(1), help="Only this many; `rest` goes on.")
@click.option(
    "--stages", help="'1,10,rest' (default): each waits for the one before, and stops on failure."
)
@click.option("--patience", default="10m", show_default=True, help="How long a stage may take.")
@click.option("--dry-run", is_flag=True, help="Only count what would be requeued.")
@click.option("--why", default="", metavar="TEXT", help="Why; audit and trail show it.")
@output.json_option
def requeue(
    fingerprint: str,
    first: int | None,
    stages: str | None,
    patience: str,
    *,
    dry_run: bool,
    why: str,
    json_: bool,
) -> None:
    """Return the tasks of one cause to the pending pool, in stages.

    The next stage begins when the tasks of the one before have ended. None begins if one of them
    fails for the same cause again, or has not ended in time.
    """
    if first and stages:
        raise click.UsageError("Give --first or --stages, not both.")
    plan = (first,) if first else _stages(stages) if stages else STAGES
    digits = fingerprint_digits(fingerprint)
    try:
        span = parse_duration(patience)
    except ValueError as error:
        problem = f"{error}. Write it as 30s, 10m or 2d"
        raise click.BadParameter(problem, param_hint="--patience") from None
    with open_engine() as engine:
        if dry_run:
            number = foresee_bulk(engine, "requeue", fingerprint=digits).counts.total()
            words = f"{count(number, 'task')} would be requeued. Nothing was changed."
            output.print_answer(words, {"number": number, "changed": False}, json_=json_)
            return
        _warn_of_unserved_queues(engine, digits)
        results, failed = [], False
        for stage in requeue_errors(engine, digits, plan, by=caller(), why=why, patience=span):
            done = stage.done
            failed = bool(stage.again or stage.going or done.left_out)
            result = {name: getattr(done, name) for name in DONE_FIELDS}
            results.append(result | {"again": stage.again, "going": stage.going})
            if json_:
                continue
            click.echo(f"{count(len(done.ids), 'task')} of the stage requeued" * bool(done.ids))
            for reason, ids in sorted(done.left_out.items()):
                click.echo(f"{count(len(ids), 'task')} left as they are, {reason}", err=True)
            if stage.again:
                again = count(stage.again, "task")
                click.echo(f"Stopped: {again} failed for the same cause again.", err=True)
            elif stage.going:
                click.echo(f"Stopped: {count(stage.going, 'task')} had not ended.", err=True)
            if done.more and (failed or first):
                output.print_text(f"To go on: tasks-app rest {done.token}")
    if json_:
        output.print_json(results)
    sys.exit(EXIT_NO if failed else 0)


def _stages(text: str) -> tuple[int | None, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word == "rest" or (word.isdecimal() and int(word)) for word in words):
        raise click.BadParameter("are numbers from 1 and 'rest': 1,10,rest", param_hint="--stages")
    return tuple(None if word == "rest" else int(word) for word in words)


def _warn_of_unserved_queues(engine: Engine, fingerprint: str) -> None:
    """Name the queues without a worker, for which a stage would wait until its end."""
    with engine.connect() as connection:
        page = error_page(connection, fingerprint, most=1)
        served = heartbeats.handlers_by_queue(connection, settings().lease)
        run_by = heartbeats.started_by(connection, settings().lease)
    for queue in sorted(set(page.group.queues) - served.keys()) if page else ():
        output.print_text(f"No live worker serves {queue}. {run_by.start_worker(queue)}", err=True)


@errors.command()
@click.argument("fingerprint")
@click.option("--by", help="Who knows it. Default: you.")
@click.option("--until", help="When the mark ends: 7d, or ISO 8601 with a zone.")
@click.option("--note", default="", help="For the others: what is being done.")
@why_option
@output.json_option
def known(fingerprint: str, by: str | None, until: str | None, note: str, *, json_: bool) -> None:
    """Mark a cause as known."""
    who = by or caller()
    end: datetime | timedelta | None = None
    if until is not None:
        try:
            end = parse_duration(until)
        except ValueError:
            end = parse_instant(until, "--until")
    with transaction() as connection:
        done = mark_error_known(
            connection, fingerprint_digits(fingerprint), by=who, until=end, note=note
        )
    if not done:
        output.refuse(f"No failed task has {fingerprint:.40}. Run: tasks-app errors")
    fields = {"fingerprint": fingerprint, "known_by": who, "known_until": until, "note": note}
    output.print_answer("known", fields, json_=json_)


add_commands(errors, task_actions)


@errors.command()
@output.json_option
def fill(*, json_: bool) -> None:
    """Give errors of older code their fingerprints; record new causes."""
    filled, page, number = 0, 1_000, 1_000
    with open_engine() as engine:
        while number == page:
            with engine.begin() as connection:
                number = fill_fingerprints(connection, page)
            filled += number
    output.print_answer(f"{count(filled, 'task')} filled", {"filled": filled}, json_=json_)


def _busy(hours: list[int]) -> str:
    """Return how many failed in the hours in which any did, the newest first."""
    busy = [(ago, number) for ago, number in enumerate(reversed(hours)) if number]
    words = [
        f"{number} {f'{ago} h ago' if ago else 'within the last hour'}"
        for ago, number in busy[:MOST_BUSY]
    ]
    left = sum(number for _, number in busy[MOST_BUSY:])
    return ", ".join([*words, *([f"{left} before"] if left else [])]) or "none within a day"


def _line(group: ErrorGroup, now: datetime, *, wide: bool) -> list[str]:
    instants = (group.first_at, group.last_at)
    return [
        *(group.fingerprint, str(group.number)),
        *(output.format_instant(at, now, wide=wide) for at in instants),
        *(", ".join(group.names), ", ".join(group.queues), group.known_by or ""),
    ]
