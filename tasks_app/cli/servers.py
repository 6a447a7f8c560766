"""``up``, ``down``, ``urls``: the embedded servers. ``demo``: a shop's day on them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tasks_app.cli import output
from tasks_app.domain.config.urls import PREFIX
from tasks_app.embedded.folder import DEFAULT_FOLDER, read_state, read_urls

if TYPE_CHECKING:
    from tasks_app.embedded.folder import Started

_PACKAGE = Path(__file__).parents[1]
_EXAMPLES = (_PACKAGE / "_examples", _PACKAGE.parent / "examples")
"""In a wheel, and in a checkout."""
folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Where the servers keep their data.",
)


@click.command()
@click.option("-d", "--detach", is_flag=True, help="Return when both servers answer.")
@output.json_option
@folder_option
def up(*, detach: bool, json_: bool, folder: Path) -> None:
    """Start PostgreSQL and Valkey in a folder, on free ports."""
    from tasks_app.embedded.stack import supervise  # noqa: PLC0415  it comes with an extra
    from tasks_app.embedded.stack import up as start  # noqa: PLC0415

    if not detach:
        supervise(folder, on_up=lambda stack: _tell(stack.started, folder, json_=json_))
        return
    start(folder)
    state = read_state(folder)
    _tell(state.started if state else (), folder, detached=True, json_=json_)


@click.command()
@output.json_option
@folder_option
def down(*, json_: bool, folder: Path) -> None:
    """Stop the servers; their data stays."""
    from tasks_app.embedded.stack import down as stop  # noqa: PLC0415

    stopped = stop(folder)
    words = "Stopped." if stopped else "Nothing was running."
    output.print_answer(words, {"stopped": stopped}, json_=json_)


@click.command()
@output.json_option
@folder_option
def urls(*, json_: bool, folder: Path) -> None:
    """Print the servers' URLs, for eval "$(tasks-app urls)"."""
    found = read_urls(folder)
    if found is None:
        output.refuse(f"No embedded servers are running. Run: tasks-app up -d{_option(folder)}")
    values = {f"{PREFIX}DATABASE_URL": found.database, f"{PREFIX}BROKER_URL": found.broker}
    if json_:
        output.print_json(values)
        return
    for name, value in values.items():
        click.echo(f"export {name}={shlex.quote(value)}")


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def demo(options: tuple[str, ...]) -> None:
    """Watch a shop's day: retries, a killed worker, a lost broker.

    Without a terminal, or with --once, it ends by itself, with its verdict as exit code.
    """
    examples = next(folder for folder in _EXAMPLES if folder.is_dir())
    prints = f"{sys.stdout.encoding}:backslashreplace"  # as every command here
    environment = {**os.environ, "PYTHONPATH": str(examples), "PYTHONIOENCODING": prints}
    command = [sys.executable, "-m", "shop", *options]
    # exec, because a parent would have to forward each signal, and Ctrl-C would reach both.
    os.execve(sys.executable, command, environment)  # noqa: S606  our own module


def _tell(started: Sequence[Started], folder: Path, *, detached: bool = False, json_: bool) -> None:
    urls = f'eval "$(tasks-app urls{_option(folder)})"'
    hint = f"Press Ctrl-C to stop. In another terminal: {urls}"
    if detached:
        hint = f"Next: {urls} && tasks-app migrate"
    output.print_answer("\n".join([*map(str, started), hint]), started, json_=json_)


def _option(folder: Path) -> str:
    """Return the option with which the next command finds the same servers."""
    return "" if folder == DEFAULT_FOLDER else f" --folder {shlex.quote(str(folder))}"
