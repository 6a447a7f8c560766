"""``breakers``: circuit breakers between handlers and what they depend on."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.actions.limits import override
from tasks_app.cli import output
from tasks_app.cli.acting import command_of
from tasks_app.cli.database import transaction
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, BreakerStanding
from tasks_app.pool.flow_control import breaker as rows

_LISTED = ("dependency", "state", "since", "mode", "calls", "held", "handlers", "reason")


@click.group()
def breakers() -> None:
    """Hold back tasks whose dependency is down: list, open, close."""


@breakers.command("list")
@output.as_json
def list_(*, json_: bool) -> None:
    """List all breakers: how they stand, and how many tasks each holds."""
    with transaction() as connection:
        found = [_fields(standing) for standing in rows.find(connection)]
    output.print_list(found, _LISTED, lambda each: list(each.values()), json_=json_)


for name, mode, words in (
    ("open", BreakerMode.OPEN, "Hold all tasks that depend on it, until somebody says otherwise."),
    (
        "close",
        BreakerMode.CLOSED,
        "Let all its tasks go. It stays closed, whatever their outcomes are.",
    ),
    (
        "auto",
        BreakerMode.AUTO,
        "Leave it to the outcomes again. An open one lets probes through at once.",
    ),
):
    breakers.add_command(command_of(override, name, words, mode=mode))


def _fields(standing: BreakerStanding) -> dict[str, Any]:
    return {
        "dependency": standing.breaker.dependency,
        "state": str(standing.state),
        "since": standing.since,
        "mode": str(standing.mode),
        "calls": standing.calls,
        "held": standing.held,
        "handlers": ", ".join(standing.names),
        "reason": standing.reason,
    }
