"""``list``, ``show``, ``stats``: what an operator sees."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

import click

from tasks_app.cli import listing, output
from tasks_app.cli.database import transaction
from tasks_app.domain.coordination.groups import GroupProgress
from tasks_app.domain.tasks.records import Task
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.flow_control.pause import paused
from tasks_app.pool.groups.browse import groups_of
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.pool.tasks import browse, checkpoint


@click.command("list")
@click.option("--pool", type=click.Choice([str(pool) for pool in Pool]))
@click.option("--state", type=click.Choice([str(state) for state in State], case_sensitive=False))
@click.option("--name")
@click.option("--queue")
@click.option("--biz-key")
@click.option("--before", type=int, help="Go on below this id.")
@click.option("--most", type=click.IntRange(1, 1000), default=20, show_default=True)
@listing.as_wide
@output.as_json
def list_(*, wide: bool, json_: bool, **filters: Any) -> None:
    """List tasks, newest first: since when, or until when, and what is wrong.

    A task that waits or runs shows what its last attempt failed with.
    """
    with transaction() as connection:
        tasks, now = browse.find(connection, **filters), instant(connection)
        going = [task.id for task in tasks if task.pool == Pool.PENDING and task.attempt]
        causes = browse.last_causes(connection, going)
    if json_:
        output.print_json([{**asdict(task), "last_error": causes.get(task.id)} for task in tasks])
        return
    remarks = [_remark(task, causes.get(task.id)) for task in tasks]
    more = f"\nOlder ones: --before {tasks[-1].id}" if len(tasks) == filters["most"] else ""
    if wide:
        lines = [[output.cell(getattr(task, name)) for name in _WIDE] for task in tasks]
        click.echo(
            "\n".join(listing.lay_out(_WIDE, lines, remarks, remark="remark", most=None)) + more
        )
        return
    click.echo(
        "\n".join(
            listing.lay_out(
                ("id", "state", "when", "failures", "name", "queue", "biz_key"),
                [_line(task, now) for task in tasks],
                remarks,
                remark="remark",
                most=listing.width(),
                cut=("name", "queue", "biz_key"),
            )
        )
        + more
    )


_WIDE = (
    *("id", "pool", "state", "name", "queue", "priority", "biz_key", "unique_key", "attempt"),
    *("failures", "max_attempts", "crashes", "created_at", "due_at", "started_at", "finished_at"),
    *("expires_at", "cancel_requested_at", "owner", "lease_until", "run_ms"),
)


def _line(task: Task, now: datetime) -> list[str]:
    charged = f"{task.failures} of {task.max_attempts}" if task.max_attempts else str(task.failures)
    return [
        *(str(task.id), str(task.state), _when(task, now), charged),
        *(task.name, task.queue, task.biz_key or ""),
    ]


def _when(task: Task, now: datetime) -> str:
    if task.state is State.RUNNING:
        return f"began {listing.age(task.started_at, now)}"
    if task.state is State.PENDING:
        return f"due {listing.age(task.due_at, now)}"
    return listing.age(task.finished_at, now)


def _remark(task: Task, last_error: str | None) -> str:
    return "; ".join(said for said in (task.error, task.parked, last_error) if said)


@click.command()
@click.argument("task_id", type=int)
@output.as_json
def show(task_id: int, *, json_: bool) -> None:
    """Show one task with its failed attempts, wherever it lies."""
    with transaction() as connection:
        task = browse.get(connection, task_id)
        attempts = browse.attempts(connection, task_id)
        kept = checkpoint.read(connection, task_id)
        groups = groups_of(connection, task_id, exists=task is not None)
    if task is None:
        awaited = groups.callback_of
        it = "" if awaited is None else f", it is the callback of group {awaited.id}"
        click.echo(f"There is no task {task_id}{it}. Run: tasks-app {_look(awaited)}", err=True)
        sys.exit(1)
    if json_:
        found = None if kept is None else kept._asdict()
        of = groups._asdict()
        output.print_json({"task": task, "attempts": attempts, "progress": found, **of})
        return
    output.print_fields((field.name, getattr(task, field.name)) for field in fields(task))
    output.print_fields(
        (name, f"{each.id}, {_stands(each)}")
        for name, each in groups._asdict().items()
        if each is not None
    )
    if kept is not None:
        done = None if kept.fraction is None else f"{kept.fraction:.0%} {kept.note or ''}".strip()
        output.print_fields(
            [("progress", done), ("checkpoint", kept.checkpoint), ("committed_at", kept.at)]
        )
    for attempt in attempts:
        click.echo(
            f"\nattempt {attempt.attempt} at {attempt.ended_at:%Y-%m-%d %H:%M:%S}Z: "
            f"{attempt.event}, {attempt.kind}: {attempt.message}"
        )
        if attempt.traceback:
            click.echo(attempt.traceback.rstrip())


@click.command()
@output.as_json
def stats(*, json_: bool) -> None:
    """Count tasks by name, queue and state."""
    with transaction() as connection:
        counts = browse.stats(connection)
        pauses = paused(connection)
    if json_:
        output.print_json(list(counts))
        return
    output.print_table(
        ("name", "queue", "state", "tasks", "oldest due"),
        [(c.name, c.queue, c.state, c.number, c.oldest_due_at) for c in counts],
    )
    for stopped in pauses:
        queue = "every queue" if stopped.queue == EVERY_QUEUE else f"queue {stopped.queue}"
        reason = f": {stopped.reason}" if stopped.reason else ""
        end = stopped.resume_at
        until = f" until {end.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z" if end else ""
        click.echo(f"{queue} is paused since {stopped.since:%Y-%m-%d %H:%M:%S}Z{until}{reason}")


def _look(group: GroupProgress | None) -> str:
    return "list" if group is None else f"groups show {group.id}"


def _stands(group: GroupProgress) -> str:
    outcome = "goes on" if group.outcome is None else str(group.outcome)
    return f"{group.left} of {group.total} have not ended ({outcome})"
