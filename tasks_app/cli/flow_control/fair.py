"""``fair``: queues whose fair keys share what runs."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import as_why, caller, transaction
from tasks_app.pool.flow_control.fair_queues import fair_queues
from tasks_app.runtime.api.limits import share_queue, unshare_queue


@click.command()
@click.argument("queue", required=False)
@click.option(
    "--weight", "weights", multiple=True, metavar="KEY=NUMBER", help="Other keys weigh 1."
)
@click.option("--off", is_flag=True, help="Share it no more: priority and age alone decide.")
@as_why
@output.as_json
def fair(queue: str | None, weights: tuple[str, ...], *, off: bool, json_: bool) -> None:
    """Let the fair keys of QUEUE share it. Without QUEUE list all.

    A weight that is not given is 1, even if it was given before.
    """
    if queue is None:
        _list(json_=json_)
    elif off:
        with transaction() as connection:
            changed = unshare_queue(connection, queue, by=caller())
        words = "by priority and age" if changed else "was not shared"
        output.answer(words, {"queue": queue, "shared": False, "changed": changed}, json_=json_)
    else:
        given = dict(map(_weight, weights))
        with transaction() as connection:
            share_queue(connection, queue, given, by=caller())
        shared = {"queue": queue, "shared": True, "weights": given}
        output.answer("shared by fair_key", shared, json_=json_)


def _list(*, json_: bool) -> None:
    with transaction() as connection:
        found = [{"queue": q, "weights": w} for q, w in sorted(fair_queues(connection).items())]
    output.print_list(found, ("queue", "weights other than 1"), _line, json_=json_)


def _line(of: dict[str, Any]) -> list[str]:
    weights = sorted(of["weights"].items())
    return [of["queue"], " ".join(f"{key}={weight:g}" for key, weight in weights)]


def _weight(given: str) -> tuple[str, float]:
    key, _, number = given.rpartition("=")
    try:
        return key, float(number)
    except ValueError:
        raise click.BadParameter(f"{given!r} is no key=number", param_hint="--weight") from None
