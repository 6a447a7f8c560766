"""What is drained while it is watched."""

from __future__ import annotations

from tasks_app import TaskContext, handler


@handler("noop")
def noop(ctx: TaskContext) -> None:
    """Do nothing."""
