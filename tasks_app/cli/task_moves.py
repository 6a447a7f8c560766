"""``create``, ``export``, ``import``, ``cancel-moved``: tasks from and to elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.commands import json_value, parse_instant
from tasks_app.cli.database import caller, load_modules, open_engine, transaction, why_option
from tasks_app.cli.output import print_text
from tasks_app.domain.durations import count
from tasks_app.domain.errors import EXIT_NO, nearest
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.records import POLICIES, SCOPES, CreateOutcome
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.transfer import cancel_moved, export_tasks, import_tasks


def suggest_name(name: str, undo: str, *, queue: str = "") -> None:
    """Name the handler that was perhaps meant, or the queue of a task without a handler here."""
    if name in HANDLERS.names:
        return
    fact = f"TASKS_APP_IMPORTS has no handler {name}"
    if near := nearest(name, HANDLERS.names):
        print_text(f"{fact}. Did you mean {near}? Then {undo}.", err=True)
    elif queue:
        print_text(f"{fact}, so its queue is {queue}. To choose another: --queue", err=True)


@click.command()
@click.argument("name")
@click.argument("payload", default="{}")
@click.option("--queue", help="Default: the handler's queue where it is known.")
@click.option("--priority", type=int, help="0 is first, 9 last.")
@click.option("--delay", help="Run after this long: 30s, 10m, 6h.")
@click.option("--run-at", help="Run then, ISO 8601 with a zone: 2030-01-31T09:00:00+01:00.")
@click.option("--biz-key", help="The business object: order:42.")
@click.option("--fair-key", help="Whose share of a fair queue it takes: tenant:7.")
@click.option("--order-key", help="Tasks of one key run one at a time, the oldest first.")
@click.option(
    "--limit-key", multiple=True, help="Limits of keys count by it: tenant:7. Repeatable."
)
@click.option("--weight", type=int, help="Tokens that it takes from their rates: 1500.")
@click.option("--unique-key", help="At most one pending or running task of this name has it.")
@click.option("--unique-scope", help=f"For how long: {SCOPES}.")
@click.option("--on-conflict", help=f"When the key is taken: {POLICIES}.")
@click.option("--max-attempts", type=int, help="After this many failures it is FAILED.")
@click.option("--retry", help="Waits between attempts: 5s,30s,1m.")
@output.json_option
def create(name: str, payload: str, run_at: str | None, *, json_: bool, **given: Any) -> None:
    """Create one task. PAYLOAD is JSON, usually an object."""
    options: dict[str, Any] = {
        key: value for key, value in given.items() if value not in (None, ())
    }
    if run_at is not None:
        options["run_at"] = parse_instant(run_at, "--run-at")
    load_modules()
    assumed = "default" if name not in HANDLERS.specs and "queue" not in options else ""
    if assumed:
        options["queue"] = assumed
    with transaction() as connection:
        task_id = create_task(connection, name, json_value(payload), **TaskOptions(**options))  # type: ignore[typeddict-item]
    suggest_name(name, "cancel this task", queue=assumed)
    made = {"id": int(task_id), "outcome": task_id.outcome}
    output.print_answer(f"{task_id}{_NOTES[task_id.outcome]}", made, json_=json_)


_NOTES = {
    CreateOutcome.CREATED: "",
    CreateOutcome.EXISTING: "  (exists already: its unique_key is taken)",
    CreateOutcome.REPLACED: "  (exists already: it has this payload now)",
    CreateOutcome.RESCHEDULED: "  (exists already: it is due at this time now)",
}


def _file(_context: click.Context, _parameter: click.Parameter, given: Path) -> Path:
    if str(given) == "-":
        raise click.BadParameter("it holds payloads, so it must not be standard input or output")
    return given


file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False), callback=_file)


@click.command()
@file
@click.option("--name", help="Tasks of this name.")
@click.option("--queue", help="Of this queue.")
@click.option("--biz-key", help="Of this business object: order:42.")
@click.option("--held", is_flag=True, default=None, help="Only those that are held.")
@click.option("--retrying", is_flag=True, default=None, help="Only those that have run before.")
@click.option("--older-than", help="Created longer ago than this: 30m, 6h, 2d.")
@click.option("--newer-than", help="Created within this long.")
@why_option
@output.json_option
def export(file: Path, *, json_: bool, **selection: Any) -> None:
    """Write waiting tasks to FILE, one line of JSON each; they stay.

    FILE holds their payloads, and only you can read it. It appears when it is
    complete. Exit 1: members of groups were left out.
    """
    with open_engine() as engine:
        done = export_tasks(engine, file, by=caller(), **selection)
    output.print_answer(f"{count(done.tasks, 'task')} exported to {file}", done, json_=json_)
    _left(done.members, "left out, as members of groups")


@click.command("import")
@file
@click.option(
    "--receipt",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What is here now, for `cancel-moved`. Default: FILE.moved.",
)
@why_option
@output.json_option
def import_(file: Path, receipt: Path | None, *, json_: bool) -> None:
    """Create the tasks that `export` wrote, each once.

    You may kill it and run it again. Exit 1: tasks were left out, because others
    have their unique keys.
    """
    receipt = receipt or file.with_name(f"{file.name}.moved")
    with open_engine() as engine:
        done = import_tasks(engine, file, receipt, by=caller())
    words = f"{count(done.tasks, 'task')} of {file} here: {receipt} says which"
    output.print_answer(words, done, json_=json_)
    _left(done.left_out, "left out: others have their names and unique keys here")


@click.command("cancel-moved")
@file
@why_option
@output.json_option
def cancel_moved_(file: Path, *, json_: bool) -> None:
    """Cancel held tasks that `import` created elsewhere.

    FILE is the receipt that `import` wrote. Exit 1: some are not held; they stay as they are.
    """
    with open_engine() as engine:
        done = cancel_moved(engine, file, by=caller())
    output.print_answer(f"{count(done.cancelled, 'task')} cancelled", done, json_=json_)
    _left(done.left, "left alone, not held here or gone")


def _left(ids: list[int], why: str) -> None:
    if ids:
        click.echo(f"{len(ids)} {why}: {output.shown_ids(ids)}", err=True)
        sys.exit(EXIT_NO)
