"""``limits`` and ``unblock``: how much may run at a time, and who need not wait any longer."""

from __future__ import annotations

import sys

import click

from tasks_app.cli import output
from tasks_app.cli.database import caller, transaction
from tasks_app.domain.flow_control.limits import Kind, Limit
from tasks_app.runtime.api import limits as rows

_KINDS = click.Choice([kind.value for kind in Kind if kind is not Kind.ORDER])


@click.group()
def limits() -> None:
    """Limit how many tasks run at a time, or start in a period."""


@limits.command("list")
@output.as_json
def list_(*, json_: bool) -> None:
    """List all limits."""
    with transaction() as connection:
        found = rows.list_limits(connection)
    if json_:
        output.print_json(found)
        return
    output.print_table(
        ("kind", "target", "at a time", "rate", "burst"),
        [(each.kind, each.target, each.most, _rate(each), each.burst) for each in found],
    )


@limits.command("set")
@click.argument("kind", type=_KINDS)
@click.argument("target")
@click.option("--most", type=int, help="So many run at a time; 0: none.")
@click.option("--rate", help="So many start in a period, such as 100/1m.")
@click.option("--burst", type=int, help="So many at once, after a quiet time. Default: by --rate.")
@output.as_json
def set_(
    kind: str, target: str, *, most: int | None, rate: str | None, burst: int | None, json_: bool
) -> None:
    """Set the limit of a queue, a name, or limit keys; 'tenant:*' is each key that begins so.

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
@output.as_json
def drop(kind: str, target: str, *, json_: bool) -> None:
    """Take a limit away; who waits for it goes on."""
    with transaction() as connection:
        dropped = rows.drop_limit(connection, kind, target, by=caller())
    if not dropped:
        click.echo(f"There is no limit of {kind} {target}. Run: tasks-app limits list", err=True)
        sys.exit(1)
    output.answer("dropped", {"kind": kind, "target": target, "dropped": True}, json_=json_)


@click.command("unblock")
@click.argument("task_id", type=int)
@output.as_json
def unblock(task_id: int, *, json_: bool) -> None:
    """Let the tasks go on whose order key a failed one holds. It stays in the error pool."""
    with transaction() as connection:
        done = rows.unblock_task(connection, task_id, by=caller())
    if not done:
        click.echo(f"Task {task_id} holds no order key. Run: tasks-app show {task_id}", err=True)
        sys.exit(1)
    output.answer("unblocked", {"id": task_id, "unblocked": True}, json_=json_)


def _rate(limit: Limit) -> str | None:
    return None if limit.rate is None else f"{limit.rate}/{limit.span}"
