"""``prune``, ``maintain``, ``erase``, ``encryption``: delete data, or write it again."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from functools import partial

import click

from tasks_app.cli import output
from tasks_app.cli.database import (
    caller,
    open_database,
    open_engine,
    settings,
    transaction,
    why_option,
)
from tasks_app.domain.durations import count
from tasks_app.domain.encryption import new_key
from tasks_app.domain.errors import EXIT_NO
from tasks_app.pool.operations import encrypted_values
from tasks_app.pool.operations.maintenance import RelationSize, sizes
from tasks_app.runtime.encryption.encryption import encryption as encryption_here
from tasks_app.runtime.encryption.rotation import Rotated, rotate
from tasks_app.runtime.erasure import Receipt, preview_erasure
from tasks_app.runtime.erasure import erase as erase_values
from tasks_app.runtime.leader.retention import Pruned, Retention, preview_retention
from tasks_app.runtime.migration import reindex as rewrite


@click.command()
@click.option(
    "--dry-run", is_flag=True, help="Only print what would be deleted: partitions, rows, bytes."
)
@why_option
@output.json_option
def prune(*, dry_run: bool, json_: bool) -> None:
    """Delete what is older than the settings TASKS_APP_KEEP_* say.

    They are TASKS_APP_KEEP_COMPLETED, _ERRORS and _BATCHES. Maintenance does the same once an
    hour, a quarter of a second at a time. Exit 1: a partition had to stay, because it is in use
    or this role must not drop it.
    """
    if dry_run:
        with transaction() as connection:
            found = list(preview_retention(connection, settings()))
        columns = ("pool", "what", "rows", "bytes", "would be", "kept")
        lines = [(d.pool or "batches", d.what, d.rows, d.bytes, d.how, d.kept) for d in found]
        if json_:
            output.print_json(found)
        elif not found:
            click.echo("Nothing is too old.")
        else:
            output.print_table(columns, lines)
        return
    with open_database() as database:
        pruned = Retention(settings(), database).run_for(caller())
    if json_:
        output.print_json(pruned)
    else:
        _print_pruned(pruned)
    sys.exit(EXIT_NO if pruned.in_use or pruned.not_ours else 0)


def _print_pruned(pruned: Pruned) -> None:
    for name in pruned.days:
        click.echo(f"{name} dropped")
    days, errors = count(len(pruned.days), "day"), count(pruned.errors, "failed task")
    click.echo(f"{days} dropped, {pruned.completed} completed and {errors} deleted")
    if pruned.batches:
        click.echo(f"{count(pruned.batches, 'batch instance')} deleted, with all partitions")
    for name in pruned.in_use:
        output.print_text(
            f"{name} is in use and stays. Who holds it: tasks-app doctor. Then try again.", err=True
        )
    if pruned.not_ours:
        click.echo("Completed tasks stay: run this as the owner of the tables.", err=True)


@click.command()
@click.option("--reindex", is_flag=True, help="Rebuild bloated indexes, while others work.")
@click.option("--index", "indexes", multiple=True, help="With --reindex: these, bloated or not.")
@click.option(
    "--all",
    "all_",
    is_flag=True,
    help="List all, not the 20 that waste most, of those that waste a megabyte.",
)
@output.json_option
def maintain(*, reindex: bool, indexes: tuple[str, ...], all_: bool, json_: bool) -> None:
    """Show what tables and indexes waste, by estimate.

    With --reindex it rebuilds one index after the other, by REINDEX INDEX CONCURRENTLY: no
    process waits. You may kill it and run it again. Exit 1: an index stayed as it was, because
    a transaction was open for more than a minute.
    """
    if indexes and not reindex:
        raise click.UsageError("--index goes with --reindex.")
    if reindex:
        _reindex(indexes, json_=json_)
        return
    with transaction() as connection:
        found = sizes(connection)
    # The estimate counts pages, so it says nothing about a small index.
    shown = found if all_ else [size for size in found[:20] if size.wasted >= 2**20]
    if not (shown or json_):
        output.print_text("Nothing wastes a megabyte. To list all: tasks-app maintain --all")
        return
    columns = ("name", "table", "kind", "bytes", "if rebuilt", "wasted")
    output.print_list(shown, columns, _line, json_=json_)


def _line(size: RelationSize) -> tuple[object, ...]:
    if size.estimate is None:
        return size.name, size.table, size.kind, size.bytes, "not analysed", ""
    share = f"{100 * size.wasted // max(1, size.bytes)} %"
    return size.name, size.table, size.kind, size.bytes, size.estimate, share


def _reindex(indexes: tuple[str, ...], *, json_: bool) -> None:
    with open_database() as database:
        result = rewrite(database, indexes, partial(click.echo, err=json_))
    if json_:
        output.print_json(result)
    else:
        for name in result.dropped:
            click.echo(f"{name} was dropped: an earlier try left it half done")
        none = "" if result.done or result.in_use else " None wastes more than half and 10 MB."
        click.echo(f"{count(len(result.done), 'index')} rebuilt.{none}")
    for name in result.in_use:
        output.print_text(
            f"{name} stays: a transaction is open for long. tasks-app doctor names it. "
            "Then try again.",
            err=True,
        )
    sys.exit(EXIT_NO if result.in_use else 0)


@click.command()
@click.option("--biz-key", "biz_keys", multiple=True, help="Tasks of this business object.")
@click.option("--subject", help='Tasks whose headers say {"subject": …}. Reads every row.')
@click.option(
    "--cancel",
    is_flag=True,
    help="First cancel those that wait, skip callbacks of groups, ask running ones to stop.",
)
@click.option("--why", default="", help="Kept in the receipt and in the audit.")
@click.option("--dry-run", "preview", is_flag=True, help="Only count the values.")
@output.json_option
def erase(
    *,
    biz_keys: tuple[str, ...],
    subject: str | None,
    cancel: bool,
    why: str,
    preview: bool,
    json_: bool,
) -> None:
    """Erase the data of finished tasks; print a receipt.

    Payloads, headers, results and texts go. Rows, outcomes and keys stay. Only the owner of the
    tables may do it. Exit 1: data was left, of a task that waits, runs or will be created, or of
    an open bulk. It does not reach backups and log files.
    """
    if not (biz_keys or subject):
        raise click.UsageError("Select tasks: --biz-key KEY, or --subject WHOM.")
    with open_engine() as engine:
        if preview:
            receipt = preview_erasure(engine, biz_keys, subject, by=caller(), why=why)
        else:
            receipt = erase_values(engine, biz_keys, subject, cancel=cancel, by=caller(), why=why)
    if json_:
        output.print_json({**asdict(receipt), "complete": receipt.complete})
    else:
        _print_erased(receipt, preview=preview)
    sys.exit(0 if preview or receipt.complete else EXIT_NO)


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
        output.print_text(
            f"schedule {name} makes such tasks: tasks-app schedules remove {name}", err=True
        )
    for bulk in receipt.open_bulks:
        output.print_text(
            f"bulk {bulk} goes on, its lines were left: tasks-app rest {bulk}", err=True
        )


@click.group()
def encryption() -> None:
    """Create keys, count what they encrypt, change to another."""


@encryption.command("new-key")
@click.argument("key_id", default="k1", metavar="[ID]")
@output.json_option
def new_key_(key_id: str, *, json_: bool) -> None:
    """Print a random key, for TASKS_APP_ENCRYPTION_KEYS or a file. ID: default k1."""
    if not re.fullmatch("[A-Za-z0-9_-]{1,40}", key_id):
        raise click.UsageError("An id has up to 40 letters, digits, - and _.")
    key = new_key()
    output.print_answer(f"{key_id}:{key}", {"id": key_id, "key": key}, json_=json_)


@encryption.command()
@output.json_option
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
@why_option
@output.json_option
def rotate_(*, rest: float, json_: bool) -> None:
    """Encrypt with the first key what others have encrypted.

    Workers go on. First give every process both keys, the new one first. You may stop it and start
    it again. Exit 1: values are left; their key is missing here or does not open them.
    """
    with open_engine() as engine:
        done = rotate(engine, encryption_here().keyring, by=caller(), rest_s=rest)
    if json_:
        output.print_json({**_plain(done), "complete": done.complete})
    else:
        click.echo(f"{count(done.number, 'value')} encrypted again with {done.key}")
        for key, number in done.missing.items():
            click.echo(f"{count(number, 'value')} left: the key {key} is missing here", err=True)
        for key, number in done.broken.items():
            click.echo(f"{count(number, 'value')} left: the key {key} does not open", err=True)
        if done.busy:
            click.echo(f"{count(done.busy, 'value')} left: their rows are locked", err=True)
    sys.exit(0 if done.complete else EXIT_NO)


def _role(key: str, ids: tuple[str, ...]) -> str:
    if key not in ids:
        return "missing"
    return "encrypts" if key == ids[0] else "decrypts"


def _plain(done: Rotated) -> dict[str, object]:
    return {name: getattr(done, name) for name in Rotated.__dataclass_fields__}
