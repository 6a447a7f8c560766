"""``breakers``: circuit breakers between handlers and what they depend on."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import as_why, caller, transaction
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, BreakerStanding
from tasks_app.pool.flow_control import breaker as rows
from tasks_app.runtime.flow_control.breakers import override_breaker

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


@breakers.command("open")
@click.argument("dependency")
@as_why
@output.as_json
def open_(dependency: str, *, json_: bool) -> None:
    """Hold all tasks that depend on it, until somebody says otherwise."""
    _override(dependency, BreakerMode.OPEN, "open by hand", json_=json_)


@breakers.command()
@click.argument("dependency")
@as_why
@output.as_json
def close(dependency: str, *, json_: bool) -> None:
    """Let all its tasks go. It stays closed, whatever their outcomes are."""
    _override(dependency, BreakerMode.CLOSED, "closed by hand", json_=json_)


@breakers.command()
@click.argument("dependency")
@as_why
@output.as_json
def auto(dependency: str, *, json_: bool) -> None:
    """Leave it to the outcomes again. An open one lets probes through at once."""
    _override(dependency, BreakerMode.AUTO, "left to its outcomes", json_=json_)


def _override(dependency: str, mode: BreakerMode, words: str, *, json_: bool) -> None:
    with transaction() as connection:
        done = override_breaker(connection, dependency, mode, by=caller())
    if not done:
        output.refuse(f"There is no breaker {dependency}. Run: tasks-app breakers list")
    if mode is not BreakerMode.AUTO:
        words += f", until somebody says: tasks-app breakers auto {dependency}"
    output.answer(words, {"dependency": dependency, "mode": str(mode)}, json_=json_)


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
