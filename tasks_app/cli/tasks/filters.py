"""The options by which an operator says which tasks are meant, and how many of them now."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.cli.arguments import options
from tasks_app.domain.tasks.states import Pool, State

first = click.option(
    "--first", type=click.IntRange(1), help="Act on this many, and say how to go on."
)
dry_run = click.option("--dry-run", is_flag=True, help="Only count the tasks; change nothing.")
why = click.option("--why", metavar="TEXT", help="Why; audit, trail and `explain` show it.")


_named = options(
    click.option("--name", help="Tasks of this name."),
    click.option("--queue", help="Of this queue."),
    click.option("--biz-key", help="Of this business object: order:42."),
)
_placed = options(
    click.option(
        "--pool", type=click.Choice([str(pool) for pool in Pool]), help="Only those in this pool."
    ),
    click.option(
        "--state",
        type=click.Choice([str(s) for s in State], case_sensitive=False),
        help="Only those in this state.",
    ),
    click.option("--fingerprint", help="Of the error, as `errors` lists it."),
)
_aged = options(
    click.option("--error-kind", help="Class of the last error."),
    click.option("--error-text", help="Part of the last error."),
    click.option("--older-than", help="Created, or finished, longer ago than this: 30m, 6h, 2d."),
    click.option("--newer-than", help="Created, or finished, within this long."),
    first,
    dry_run,
)
filters = options(_named, _placed, _aged)
"""Which tasks, and how many of them now."""
waiting_filters = options(
    _named,
    click.option(
        "--retrying", is_flag=True, default=None, help="Only those that wait for another attempt."
    ),
    _aged,
)
"""The same of those that wait."""


def selects(given: dict[str, Any]) -> bool:
    """Say whether any option selects tasks."""
    return any(value is not None and value is not False for value in given.values())
