"""What is said of a task's name that no handler here has."""

from __future__ import annotations

import click

from tasks_app.domain.spelling import nearest
from tasks_app.runtime.handlers.registry import HANDLERS


def hint_at_name(name: str, undo: str) -> None:
    """Say which handler was perhaps meant. The task waits for a worker that knows its name."""
    if name in HANDLERS.names:
        return
    if near := nearest(name, HANDLERS.names):
        told = f"TASKS_APP_IMPORTS has no handler {name}, but {near}."
        click.echo(f"{told} If that was meant, {undo}.", err=True)
