"""``breakers``: what stands between handlers and what they depend on."""

from __future__ import annotations

import sys
from datetime import UTC
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import caller, transaction
from tasks_app.domain.flow_control.circuit_breaker import Mode, Standing
from tasks_app.pool.flow_control import breaker as rows
from tasks_app.runtime.flow_control.breakers import override_breaker

_LISTED = ("dependency", "state", "since", "mode", "calls", "held", "handlers", "reason")


@click.group()
def breakers() -> None:
    """Hold back tasks whose dependency is down: list, open, close, or leave it to the outcomes."""


@breakers.command("list")
@output.as_json
def list_(*, json_: bool) -> None:
    """List all breakers: how they stand, and how many tasks each holds."""
    with transaction() as connection:
        found = rows.find(connection)
    if json_:
        output.print_json([_fields(standing) for standing in found])
    else:
        output.print_table(_LISTED, [list(_fields(standing).values()) for standing in found])


@breakers.command("open")
@click.argument("dependency")
@output.as_json
def open_(dependency: str, *, json_: bool) -> None:
    """Hold all tasks that depend on it, until somebody says otherwise."""
    _override(dependency, Mode.OPEN, "open", json_=json_)


@breakers.command()
@click.argument("dependency")
@output.as_json
def close(dependency: str, *, json_: bool) -> None:
    """Let all its tasks go, and open it no more, whatever their outcomes are."""
    _override(dependency, Mode.CLOSED, "closed", json_=json_)


@breakers.command()
@click.argument("dependency")
@output.as_json
def auto(dependency: str, *, json_: bool) -> None:
    """Leave it to the outcomes again: an open one lets probes through at once."""
    _override(dependency, Mode.AUTO, "left to its outcomes", json_=json_)


def _override(dependency: str, mode: Mode, words: str, *, json_: bool) -> None:
    with transaction() as connection:
        done = override_breaker(connection, dependency, mode, by=caller())
    if not done:
        click.echo(f"There is no breaker {dependency}. Run: tasks-app breakers list", err=True)
        sys.exit(1)
    output.answer(words, {"dependency": dependency, "mode": str(mode)}, json_=json_)


def _fields(standing: Standing) -> dict[str, Any]:
    return {
        "dependency": standing.breaker.dependency,
        "state": str(standing.state),
        "since": standing.since.astimezone(UTC),
        "mode": str(standing.mode),
        "calls": f"{standing.bad} of {standing.good + standing.bad} failed",
        "held": standing.held,
        "handlers": ", ".join(standing.names),
        "reason": standing.reason,
    }
