"""``erase``: remove what tasks of a key or subject hold."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from tasks_app.cli import output
from tasks_app.cli.database import caller, connected
from tasks_app.domain.errors import NO
from tasks_app.domain.explain.words import count
from tasks_app.runtime.erasure import Receipt, preview_erasure
from tasks_app.runtime.erasure import erase as carry_out


@click.command()
@click.option("--biz-key", "biz_keys", multiple=True, help="Tasks of this business object.")
@click.option("--subject", help='Tasks whose headers say {"subject": …}. Reads every row.')
@click.option(
    "--cancel",
    is_flag=True,
    help="Cancel those that wait first, skip those that groups will call, tell those that run.",
)
@click.option("--why", default="", help="Kept in the receipt and in the audit.")
@click.option("--dry-run", "preview", is_flag=True, help="Only count what is meant.")
@output.as_json
def erase(
    *,
    biz_keys: tuple[str, ...],
    subject: str | None,
    cancel: bool,
    why: str,
    preview: bool,
    json_: bool,
) -> None:
    """Remove what tasks that are over hold; print a receipt.

    Payloads, headers, results and texts go. Rows, outcomes and keys stay. Only the owner of the
    tables may. Exit 1: something was left, because it still waits, runs, is to be created or goes
    on. Backups and log files are out of reach.
    """
    if not (biz_keys or subject):
        raise click.UsageError("Say which tasks: --biz-key KEY, or --subject WHOM.")
    with connected() as engine:
        if preview:
            receipt = preview_erasure(engine, biz_keys, subject, by=caller(), why=why)
        else:
            receipt = carry_out(engine, biz_keys, subject, cancel=cancel, by=caller(), why=why)
    if json_:
        output.print_json({**asdict(receipt), "complete": receipt.complete})
    else:
        _print(receipt, preview=preview)
    sys.exit(0 if preview or receipt.complete else NO)


def _print(receipt: Receipt, *, preview: bool) -> None:
    tasks = count(receipt.tasks, "task")
    click.echo(f"{tasks} would be erased" if preview else f"{tasks} erased")
    if receipt.cancelled:
        click.echo(f"{count(receipt.cancelled, 'task')} cancelled first")
    for table, number in receipt.rows.items():
        click.echo(f"{table}: {count(number, 'row')}")
    if receipt.audit is not None:
        at = output.cell(receipt.at)
        click.echo(f"receipt: line {receipt.audit} of the audit, {at}, {receipt.by}")
    if receipt.waiting:
        click.echo(f"{count(receipt.waiting, 'task')} left, still to run: --cancel", err=True)
    if receipt.running:
        click.echo(f"{count(receipt.running, 'task')} left, running: try again later", err=True)
    if receipt.callbacks:
        groups = count(receipt.callbacks, "group")
        click.echo(f"{groups} left, still to call such a task: --cancel", err=True)
    for name in receipt.schedules:
        output.say(f"schedule {name} makes such tasks: tasks-app schedules remove {name}", err=True)
    for bulk in receipt.open_bulks:
        output.say(f"bulk {bulk} goes on, its lines were left: tasks-app rest {bulk}", err=True)
