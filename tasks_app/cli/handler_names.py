"""What is said of a task's name that no handler here has."""

from __future__ import annotations

from tasks_app.cli.output import say
from tasks_app.domain.spelling import nearest
from tasks_app.runtime.handlers.registry import HANDLERS


def hint_at_name(name: str, undo: str, *, queue: str = "") -> None:
    """Say which handler was perhaps meant, or to which queue a task goes since none is known."""
    if name in HANDLERS.names:
        return
    told = f"TASKS_APP_IMPORTS has no handler {name}"
    if near := nearest(name, HANDLERS.names):
        say(f"{told}, but {near}. If that was meant, {undo}.", err=True)
    elif queue:
        say(f"{told}, so its queue is {queue}. To choose another: --queue", err=True)
