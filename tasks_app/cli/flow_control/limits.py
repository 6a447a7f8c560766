"""``limits``: how much may run at a time. ``unblock``: free the order key of a failed task."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import as_why, caller, transaction
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api import limits as rows

_LISTED = ("kind", "target", "at a time", "rate", "burst")
_KINDS = click.Choice([kind.value for kind in GateKind if kind is not GateKind.ORDER])


@click.group()
def limits() -> None:
    """Limit how many tasks run at a time, or start in a period."""


@limits.command("list")
@output.as_json
def list_(*, json_: bool) -> None:
    """List all limits."""
    with transaction() as connection:
        found = rows.list_limits(connection)
    output.print_list(found, _LISTED, _line, json_=json_)


@limits.command("set")
@click.argument("kind", type=_KINDS)
@click.argument("target")
@click.option("--most", type=int, help="How many run at a time; 0: none.")
@click.option("--rate", help="How many start in a period: 100/1m.")
@click.option(
    "--burst",
    type=int,
    help="How many start at once after a quiet time. Default: the rate's of a second, or 1.",
)
@as_why
@output.as_json
def set_(
    kind: str, target: str, *, most: int | None, rate: str | None, burst: int | None, json_: bool
) -> None:
    """Set the limit of a queue, a name or a limit key. 'tenant:*' means each key that begins so.

    It replaces what was set before, and holds from the next claim on.
    """
    with transaction() as connection:
        limit = rows.set_limit(
            connection, kind, target, most=most, rate=rate, burst=burst, by=caller()
        )
    output.answer("set", limit, json_=json_)


@limits.command()
@click.argument("kind", type=_KINDS)
@click.argument("target")
@as_why
@output.as_json
def remove(kind: str, target: str, *, json_: bool) -> None:
    """Remove a limit; the tasks that wait for it go on."""
    with transaction() as connection:
        dropped = rows.drop_limit(connection, kind, target, by=caller())
    if not dropped:
        output.refuse(f"There is no limit of {kind} {target}. Run: tasks-app limits list")
    output.answer("removed", {"kind": kind, "target": target, "removed": True}, json_=json_)


limits.add_command(output.also(remove), "drop")


@click.command("unblock")
@click.argument("task_id", type=int)
@as_why
@output.as_json
def unblock(task_id: int, *, json_: bool) -> None:
    """Let the tasks behind a failed one of their order key go on. It stays in the error pool."""
    with transaction() as connection:
        done = rows.unblock_task(connection, task_id, by=caller())
        if not done and browse.get(connection, task_id) is None:
            output.refuse(f"There is no task {task_id}. Run: tasks-app list")
    if not done:
        output.refuse(f"Task {task_id} holds no order key. Run: tasks-app show {task_id}")
    output.answer("unblocked", {"id": task_id, "unblocked": True}, json_=json_)


def _line(limit: Limit) -> tuple[Any, ...]:
    rate = None if limit.rate is None else f"{limit.rate}/{limit.span}"
    return limit.kind, limit.target, limit.most, rate, limit.burst
