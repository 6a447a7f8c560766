"""``encryption``: a new key, what each key has encrypted, and the change to another key."""

from __future__ import annotations

import re
import sys

import click

from tasks_app.cli import output
from tasks_app.cli.database import as_why, caller, connected, transaction
from tasks_app.domain.encryption.keyring import new_key
from tasks_app.domain.errors import NO
from tasks_app.domain.explain.words import count
from tasks_app.pool.operations import encrypted_values
from tasks_app.runtime.encryption.encryption import encryption as encryption_here
from tasks_app.runtime.encryption.rotation import Rotated, rotate


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
