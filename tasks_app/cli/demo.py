"""``demo``: a shop's day, from the examples of this checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

_INSIDE = Path(__file__).parents[1] / "_examples"
_BESIDE = Path(__file__).parents[2] / "examples"


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def demo(options: tuple[str, ...]) -> None:
    """Watch a shop's day: mails, retries, a poison task, a killed worker.

    Without a terminal, or with --once, it ends by itself, with its verdict as exit code.
    """
    examples = _INSIDE if _INSIDE.is_dir() else _BESIDE
    prints = f"{sys.stdout.encoding}:backslashreplace"  # as every command here
    environment = {**os.environ, "PYTHONPATH": str(examples), "PYTHONIOENCODING": prints}
    command = [sys.executable, "-m", "shop", *options]
    # Become it: a parent would have to hand on each signal, and Ctrl-C would reach both.
    os.execve(sys.executable, command, environment)  # noqa: S606  our own module
