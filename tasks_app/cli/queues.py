"""``pause`` and ``resume``: stop a queue, and let it run again."""

from __future__ import annotations

import sys

import click

from tasks_app.cli.database import caller, transaction
from tasks_app.pool import pause as rows
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.operator import pause_queue, resume_queue

every = click.option("--all", "every", is_flag=True, help="Every queue, also those of tomorrow.")


@click.command()
@click.argument("queue", required=False)
@every
@click.option("--reason", default="", help="Shown by stats.")
def pause(queue: str | None, *, every: bool, reason: str) -> None:
    """Stop a queue: its tasks wait, what runs already runs on."""
    name = _chosen(queue, every=every)
    with transaction() as connection:
        changed = pause_queue(connection, name, reason, by=caller())
    click.echo("paused" if changed else "was paused already")


@click.command()
@click.argument("queue", required=False)
@every
def resume(queue: str | None, *, every: bool) -> None:
    """Let a paused queue run again; with --all, every one."""
    name = _chosen(queue, every=every)
    with transaction() as connection:
        resumed = resume_queue(connection, name, by=caller())
        still = {stopped.queue for stopped in rows.paused(connection)}
    if EVERY_QUEUE in still:
        click.echo("Every queue is paused. Run: tasks-app resume --all", err=True)
        sys.exit(1)
    click.echo("resumed" if resumed else "was not paused")


def _chosen(queue: str | None, *, every: bool) -> str:
    if every == (queue is not None):
        raise click.UsageError("Give a queue, or --all.")
    return EVERY_QUEUE if queue is None else queue
