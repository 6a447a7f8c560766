"""What is said of a task's name that no handler here has."""

from __future__ import annotations

import difflib

import click

from tasks_app.runtime.handlers.registry import HANDLERS


def hint_at_name(name: str, undo: str) -> None:
    """Say which handler was perhaps meant. The task waits for a worker that knows its name."""
    if name in HANDLERS.names:
        return
    if near := difflib.get_close_matches(name, HANDLERS.names, 1):
        told = f"TASKS_APP_IMPORTS has no handler {name}, but {near[0]}."
        click.echo(f"{told} If that was meant, {undo}.", err=True)
