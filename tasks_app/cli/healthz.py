"""``healthz``: the answer for probes of containers."""

from __future__ import annotations

import sys

import click

from tasks_app.cli import output
from tasks_app.runtime.health_files import ROLES, judge, probe


@click.command()
@click.option("--role", type=click.Choice(ROLES), required=True, help="Whose health.")
@click.option("--node", help="Only this one, such as celery@host. Default: all on this machine.")
@output.as_json
def healthz(role: str, node: str | None, *, json_: bool) -> None:
    """Tell whether worker, beat or database is alive: exit 0 or 1, with one line why.

    Of worker and beat it reads files, those of the database and schema that TASKS_APP_DATABASE_URL
    and TASKS_APP_SCHEMA name; the database itself is asked. It may run every few seconds.
    """
    if not json_:
        sys.exit(probe(role, node))
    good, why = judge(role, node)
    output.print_json({"role": role, "node": node, "healthy": good, "why": why})
    sys.exit(0 if good else 1)
