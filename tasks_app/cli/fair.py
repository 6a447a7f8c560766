"""``fair``: queues whose tasks go by shares."""

from __future__ import annotations

import click

from tasks_app.cli import output
from tasks_app.cli.database import caller, transaction
from tasks_app.pool.flow_control.fair_queues import fair_queues
from tasks_app.runtime.api.limits import share_queue, unshare_queue


@click.command()
@click.argument("queue", required=False)
@click.option("--weight", "weights", multiple=True, metavar="KEY=NUMBER", help="Others have 1.")
@click.option("--off", is_flag=True, help="By priority and age alone again.")
@output.as_json
def fair(queue: str | None, weights: tuple[str, ...], *, off: bool, json_: bool) -> None:
    """Let the fair keys of a QUEUE share it; without one, list the queues that are shared.

    Weights that are not given are 1, also those that were given before.
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
        found = fair_queues(connection)
    if json_:
        output.print_json([{"queue": q, "weights": found[q]} for q in sorted(found)])
        return
    shown = (
        (queue, " ".join(f"{key}={weight:g}" for key, weight in sorted(weights.items())))
        for queue, weights in sorted(found.items())
    )
    output.print_table(("queue", "weights other than 1"), shown)


def _weight(given: str) -> tuple[str, float]:
    key, _, number = given.rpartition("=")
    try:
        return key, float(number)
    except ValueError:
        raise click.BadParameter(f"{given!r} is no key=number", param_hint="--weight") from None
