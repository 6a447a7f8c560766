"""``pause`` and ``resume``: stop a queue, and let it run again."""

from __future__ import annotations

import click

from tasks_app.cli import output
from tasks_app.cli.arguments import moment
from tasks_app.cli.database import as_why, caller, settings, transaction
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api import queues as rows
from tasks_app.runtime.api.queues import pause_queue, resume_queue

every = click.option("--all", "every", is_flag=True, help="Every queue, also future ones.")


@click.command()
@click.argument("queue", required=False)
@every
@click.option("--why", "reason", metavar="TEXT", default="", help="Shown by stats and explain.")
@click.option("--reason", "older", default="", hidden=True, help="The same as --why.")
@click.option("--for", "span", help="Resume after this long: 2h.")
@click.option("--until", help="Resume then: ISO 8601 with a zone.")
@output.as_json
def pause(
    queue: str | None,
    *,
    every: bool,
    reason: str,
    older: str,
    span: str | None,
    until: str | None,
    json_: bool,
) -> None:
    """Stop a queue: its tasks wait; those that run already go on."""
    name, reason = _chosen(queue, every=every), reason or older
    at = None if until is None else moment(until)
    with transaction() as connection:
        changed = pause_queue(connection, name, reason, resume_at=at, resume_in=span, by=caller())
        alive = heartbeats.live(connection, settings().lease)
    served = sorted({each for worker in alive for each in worker.queues})
    is_served = bool(served) if every else name in served
    output.answer(
        "paused" if changed else "was paused already",
        {"queue": name, "paused": True, "changed": changed, "served": is_served},
        json_=json_,
    )
    if not is_served and not every:
        others = f" Those that are served: {', '.join(served)}." if served else ""
        click.echo(f"No live worker serves the queue {name}.{others}", err=True)


@click.command()
@click.argument("queue", required=False)
@every
@as_why
@output.as_json
def resume(queue: str | None, *, every: bool, json_: bool) -> None:
    """Let a paused queue run again; with --all, every one."""
    name = _chosen(queue, every=every)
    with transaction() as connection:
        resumed = resume_queue(connection, name, by=caller())
        still = rows.get_queue(connection, EVERY_QUEUE)
    if still is not None:
        output.refuse("Every queue is paused. Run: tasks-app resume --all")
    words = "resumed" if resumed else "was not paused"
    output.answer(words, {"resumed": sorted(resumed)}, json_=json_)


def _chosen(queue: str | None, *, every: bool) -> str:
    if every == (queue is not None):
        raise click.UsageError("Give a queue, or --all.")
    return EVERY_QUEUE if queue is None else queue
