"""``limits``, ``breakers``, ``fair``: how much may run at a time, and for whom."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.actions import queues as queue_actions
from tasks_app.actions.tasks import unblock as unblock_action
from tasks_app.cli import output
from tasks_app.cli.commands import add_commands, command_of
from tasks_app.cli.database import caller, transaction, why_option
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, StoredBreaker
from tasks_app.domain.flow_control.limits import Limit
from tasks_app.pool.flow_control import circuit_breakers as breaker_rows
from tasks_app.pool.flow_control.fair_queues import fair_queues
from tasks_app.runtime.api import limits as limit_verbs


@click.group()
def limits() -> None:
    """Limit how many tasks run at a time, or start in a period."""


@limits.command("list")
@output.json_option
def list_limits(*, json_: bool) -> None:
    """List all limits."""
    with transaction() as connection:
        found = limit_verbs.list_limits(connection)
    columns = ("kind", "target", "at a time", "rate", "burst")
    output.print_list(found, columns, _limit_line, json_=json_)


def _limit_line(limit: Limit) -> tuple[Any, ...]:
    rate = None if limit.rate is None else f"{limit.rate}/{limit.span}"
    return limit.kind, limit.target, limit.most, rate, limit.burst


add_commands(limits, queue_actions)
limits.add_command(output.hidden_alias(command_of(queue_actions.remove_limit)), "drop")
unblock = command_of(unblock_action)


@click.group()
def breakers() -> None:
    """Hold back tasks whose dependency is down: list, open, close."""


@breakers.command("list")
@output.json_option
def list_breakers(*, json_: bool) -> None:
    """List all breakers: their states, and how many tasks each holds."""
    with transaction() as connection:
        found = [_breaker_fields(standing) for standing in breaker_rows.find_breakers(connection)]
    columns = ("dependency", "state", "since", "mode", "calls", "held", "handlers", "reason")
    output.print_list(found, columns, lambda each: list(each.values()), json_=json_)


for name, mode, words in (
    ("open", BreakerMode.OPEN, "Hold all tasks that depend on it, until `close` or `auto`."),
    ("close", BreakerMode.CLOSED, "Let all its tasks run. It ignores their outcomes."),
    ("auto", BreakerMode.AUTO, "Let outcomes decide again. If it is open, probes run at once."),
):
    breakers.add_command(command_of(queue_actions.override, name, words, mode=mode))


def _breaker_fields(standing: StoredBreaker) -> dict[str, Any]:
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


@click.command()
@click.argument("queue", required=False)
@click.option(
    "--weight", "weights", multiple=True, metavar="KEY=NUMBER", help="Other keys weigh 1."
)
@click.option("--off", is_flag=True, help="Stop sharing: priority and age alone decide.")
@why_option
@output.json_option
def fair(queue: str | None, weights: tuple[str, ...], *, off: bool, json_: bool) -> None:
    """Let the fair keys of QUEUE share it. Without QUEUE list all.

    A weight that is not given is 1, even if it was given before.
    """
    if queue is None:
        with transaction() as connection:
            found = [{"queue": q, "weights": w} for q, w in sorted(fair_queues(connection).items())]
        output.print_list(found, ("queue", "weights other than 1"), _share_line, json_=json_)
    elif off:
        with transaction() as connection:
            changed = limit_verbs.unshare_queue(connection, queue, by=caller())
        words = "by priority and age" if changed else "was not shared"
        output.print_answer(
            words, {"queue": queue, "shared": False, "changed": changed}, json_=json_
        )
    else:
        given = dict(map(_weight, weights))
        with transaction() as connection:
            limit_verbs.share_queue(connection, queue, given, by=caller())
        shared = {"queue": queue, "shared": True, "weights": given}
        output.print_answer("shared by fair_key", shared, json_=json_)


def _share_line(of: dict[str, Any]) -> list[str]:
    weights = sorted(of["weights"].items())
    return [of["queue"], " ".join(f"{key}={weight:g}" for key, weight in weights)]


def _weight(given: str) -> tuple[str, float]:
    key, _, number = given.rpartition("=")
    try:
        return key, float(number)
    except ValueError:
        raise click.BadParameter(f"{given!r} isn't key=number", param_hint="--weight") from None
