"""``prune``, ``maintain``, ``erase``, ``encryption``: what is taken away, or written anew."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from functools import partial

import click

from tasks_app.cli import output
from tasks_app.cli.database import as_why, caller, connected, opened, settings, transaction
from tasks_app.domain.durations import count
from tasks_app.domain.encryption import new_key
from tasks_app.domain.errors import NO
from tasks_app.pool.operations import encrypted_values
from tasks_app.pool.operations.maintenance import RelationSize, sizes
from tasks_app.runtime.encryption.encryption import encryption as encryption_here
from tasks_app.runtime.encryption.rotation import Rotated, rotate
from tasks_app.runtime.erasure import Receipt, preview_erasure
from tasks_app.runtime.erasure import erase as carry_out
from tasks_app.runtime.leader.retention import Pruned, Retention, preview_retention
from tasks_app.runtime.migration import reindex as rewrite


@click.command()
@click.option(
    "--dry-run", is_flag=True, help="Only print what would be deleted: partitions, rows, bytes."
)
@as_why
@output.as_json
def prune(*, dry_run: bool, json_: bool) -> None:
    """Delete what is older than the settings TASKS_APP_KEEP_* say.

    They are TASKS_APP_KEEP_COMPLETED, _ERRORS and _BATCHES. Maintenance does the same once an
    hour, a quarter of a second at a time. Exit 1: something had to stay, because somebody uses it
    or because this role may not drop partitions.
    """
    if dry_run:
        _tell(json_=json_)
        return
    with opened() as database:
        pruned = Retention(settings(), database).run_for(caller())
    if json_:
        output.print_json(pruned)
    else:
        _print_pruned(pruned)
    sys.exit(NO if pruned.in_use or pruned.not_ours else 0)


def _tell(*, json_: bool) -> None:
    with transaction() as connection:
        found = list(preview_retention(connection, settings()))
    if json_:
        output.print_json(found)
    elif not found:
        click.echo("Nothing is too old.")
    else:
        output.print_table(
            ("pool", "what", "rows", "bytes", "would be", "kept"),
            [(d.pool or "batches", d.what, d.rows, d.bytes, d.how, d.kept) for d in found],
        )


def _print_pruned(pruned: Pruned) -> None:
    for name in pruned.days:
        click.echo(f"{name} dropped")
    days, errors = count(len(pruned.days), "day"), count(pruned.errors, "failed task")
    click.echo(f"{days} dropped, {pruned.completed} completed and {errors} deleted")
    if pruned.batches:
        click.echo(f"{count(pruned.batches, 'batch instance')} deleted, with all partitions")
    for name in pruned.in_use:
        output.say(
            f"{name} is in use and stays. Who holds it: tasks-app doctor. Then try again.", err=True
        )
    if pruned.not_ours:
        click.echo("Completed tasks stay: run this as the owner of the tables.", err=True)


SHOWN = 20
WORTH_SHOWING = 2**20
"""Bytes: the estimate is one in pages, so of a small index it says nothing."""


@click.command()
@click.option("--reindex", is_flag=True, help="Write bloated indexes anew, while others work.")
@click.option("--index", "indexes", multiple=True, help="With --reindex: these, bloated or not.")
@click.option(
    "--all",
    "all_",
    is_flag=True,
    help="List all, not the 20 that waste most, of those that waste a megabyte.",
)
@output.as_json
def maintain(*, reindex: bool, indexes: tuple[str, ...], all_: bool, json_: bool) -> None:
    """Show what tables and indexes waste, by estimate.

    With --reindex one index after the other is written anew, by REINDEX INDEX CONCURRENTLY:
    nobody waits. It may be killed and run again. Exit 1: an index stayed as it was, because
    a transaction was open for more than a minute.
    """
    if indexes and not reindex:
        raise click.UsageError("--index goes with --reindex.")
    if reindex:
        _reindex(indexes, json_=json_)
        return
    with transaction() as connection:
        found = sizes(connection)
    shown = found if all_ else [size for size in found[:SHOWN] if size.wasted >= WORTH_SHOWING]
    if not (shown or json_):
        output.say("Nothing wastes a megabyte. To list all: tasks-app maintain --all")
        return
    columns = ("name", "table", "kind", "bytes", "if written anew", "wasted")
    output.print_list(shown, columns, _line, json_=json_)


def _line(size: RelationSize) -> tuple[object, ...]:
    if size.estimate is None:
        return size.name, size.table, size.kind, size.bytes, "not analysed", ""
    share = f"{100 * size.wasted // max(1, size.bytes)} %"
    return size.name, size.table, size.kind, size.bytes, size.estimate, share


def _reindex(indexes: tuple[str, ...], *, json_: bool) -> None:
    with opened() as database:
        result = rewrite(database, indexes, partial(click.echo, err=json_))
    if json_:
        output.print_json(result)
    else:
        for name in result.dropped:
            click.echo(f"{name}, which an earlier try left half done, was dropped")
        none = "" if result.done or result.in_use else " None wastes more than half and 10 MB."
        click.echo(f"{count(len(result.done), 'index')} written anew.{none}")
    for name in result.in_use:
        output.say(
            f"{name} stays: a transaction is open for long. tasks-app doctor names it. "
            "Then try again.",
            err=True,
        )
    sys.exit(NO if result.in_use else 0)


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
        _print_erased(receipt, preview=preview)
    sys.exit(0 if preview or receipt.complete else NO)


def _print_erased(receipt: Receipt, *, preview: bool) -> None:
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


@click.group()
def encryption() -> None:
    """Make keys, count what they encrypt, change to another."""


@encryption.command("new-key")
@click.argument("key_id", default="k1", metavar="[ID]")
@output.as_json
def new_key_(key_id: str, *, json_: bool) -> None:
    """Print a random key, for TASKS_APP_ENCRYPTION_KEYS or a file. ID: default k1."""
    if not re.fullmatch("[A-Za-z0-9_-]{1,40}", key_id):
        raise click.UsageError("An id has up to 40 letters, digits, - and _.")
    key = new_key()
    output.answer(f"{key_id}:{key}", {"id": key_id, "key": key}, json_=json_)


@encryption.command()
@output.as_json
def status(*, json_: bool) -> None:
    """Count encrypted values by place and key. It reads every row."""
    keyring = encryption_here().keyring
    with transaction() as connection:
        found = encrypted_values.count(connection)
    lines = [(place, key, number, _role(key, keyring.ids)) for place, key, number in found]
    columns = ("place", "key", "values", "here")
    if json_:
        output.print_json([dict(zip(columns, line, strict=True)) for line in lines])
    elif lines:
        output.print_table(columns, lines)
    else:
        click.echo("Nothing is encrypted.")


@encryption.command("rotate")
@click.option("--rest", type=click.FloatRange(0, 60), default=0.0, help="Seconds between steps.")
@as_why
@output.as_json
def rotate_(*, rest: float, json_: bool) -> None:
    """Encrypt by the first key what others have encrypted.

    Workers go on. First give every process both keys, the new one first. Stopped, it may be
    started again. Exit 1: values are left, whose key is missing here or does not open them.
    """
    with connected() as engine:
        done = rotate(engine, encryption_here().keyring, by=caller(), rest_s=rest)
    if json_:
        output.print_json({**_plain(done), "complete": done.complete})
    else:
        click.echo(f"{count(done.number, 'value')} encrypted anew by {done.key}")
        for key, number in done.missing.items():
            click.echo(f"{count(number, 'value')} left: the key {key} is missing here", err=True)
        for key, number in done.broken.items():
            click.echo(f"{count(number, 'value')} left: the key {key} does not open", err=True)
        if done.busy:
            click.echo(f"{count(done.busy, 'value')} left: their rows are locked", err=True)
    sys.exit(0 if done.complete else NO)


def _role(key: str, ids: tuple[str, ...]) -> str:
    if key not in ids:
        return "missing"
    return "encrypts" if key == ids[0] else "decrypts"


def _plain(done: Rotated) -> dict[str, object]:
    return {name: getattr(done, name) for name in Rotated.__dataclass_fields__}
