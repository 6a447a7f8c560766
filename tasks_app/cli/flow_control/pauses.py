"""``pause`` and ``resume``: stop a queue, and let it run again."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.actions import queues as actions
from tasks_app.cli import output
from tasks_app.cli.acting import carry_out, params_of, print_done
from tasks_app.cli.arguments import options
from tasks_app.cli.database import settings, transaction
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE

_which = options(
    click.argument("queue", required=False),
    click.option("--all", "every", is_flag=True, help="Every queue, also future ones."),
)


@click.command()
@_which
@params_of(actions.pause)
@click.option("--reason", "older", hidden=True, help="The same as --why.")
@output.as_json
def pause(queue: str | None, *, every: bool, older: str | None, json_: bool, **given: Any) -> None:
    """Stop a queue: its tasks wait; those that run already go on."""
    name = _chosen(queue, every=every)
    done = carry_out(actions.pause, name, {**given, "reason": given["reason"] or older})
    with transaction() as connection:
        alive = heartbeats.live(connection, settings().lease)
    served = sorted({each for worker in alive for each in worker.queues})
    is_served = bool(served) if every else name in served
    output.answer(done.said, {**done.fields, "served": is_served}, json_=json_)
    if not is_served and not every:
        others = f" Those that are served: {', '.join(served)}." if served else ""
        click.echo(f"No live worker serves the queue {name}.{others}", err=True)


@click.command()
@_which
@params_of(actions.resume)
@output.as_json
def resume(queue: str | None, *, every: bool, json_: bool) -> None:
    """Let a paused queue run again; with --all, every one."""
    print_done(carry_out(actions.resume, _chosen(queue, every=every)), json_=json_)


def _chosen(queue: str | None, *, every: bool) -> str:
    if every == (queue is not None):
        raise click.UsageError("Give a queue, or --all.")
    return EVERY_QUEUE if queue is None else queue
