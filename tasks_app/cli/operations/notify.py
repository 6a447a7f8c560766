"""``notify``: a trigger that wakes workers for tasks that no hint announces."""

from __future__ import annotations

from collections.abc import Callable

import click
from sqlalchemy import Connection

from tasks_app.cli import output
from tasks_app.cli.database import transaction
from tasks_app.pool.operations import notify_trigger


@click.group()
def notify() -> None:
    """Wake workers at once for tasks that SQL creates.

    A trigger notifies in the producer's transaction. Such transactions commit one after another.
    """


@notify.command()
@output.as_json
def install(*, json_: bool) -> None:
    """Make the trigger, as the owner of the tables."""
    _change(notify_trigger.install, "installed", "was installed already", json_=json_)


@notify.command()
@output.as_json
def remove(*, json_: bool) -> None:
    """Drop the trigger, as the owner of the tables."""
    _change(notify_trigger.remove, "removed", "was not installed", json_=json_)


@notify.command()
@output.as_json
def status(*, json_: bool) -> None:
    """Say whether the trigger is installed."""
    with transaction() as connection:
        there = notify_trigger.is_installed(connection)
    output.answer("installed" if there else "not installed", {"installed": there}, json_=json_)


def _change(change: Callable[[Connection], bool], done: str, nothing: str, *, json_: bool) -> None:
    with transaction() as connection:
        changed = change(connection)
        there = notify_trigger.is_installed(connection)
    said = {"installed": there, "changed": changed}
    output.answer(done if changed else nothing, said, json_=json_)
