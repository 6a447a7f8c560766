"""``limits``: how much may run at a time. ``unblock``: free the order key of a failed task."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.actions import limits as actions
from tasks_app.actions.tasks import unblock as unblocking
from tasks_app.cli import output
from tasks_app.cli.acting import add_commands, command_of
from tasks_app.cli.database import transaction
from tasks_app.domain.flow_control.limits import Limit
from tasks_app.runtime.api import limits as rows

_LISTED = ("kind", "target", "at a time", "rate", "burst")


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


add_commands(limits, actions)
limits.add_command(output.also(command_of(actions.remove_limit)), "drop")
unblock = command_of(unblocking)


def _line(limit: Limit) -> tuple[Any, ...]:
    rate = None if limit.rate is None else f"{limit.rate}/{limit.span}"
    return limit.kind, limit.target, limit.most, rate, limit.burst
