"""``python -m dev.benchmarks.sizing``: a short load on a database, and what to expect of it."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
from sqlalchemy import make_url

from dev.benchmarks.sizing.costs import Deployment, TaskCost
from dev.benchmarks.sizing.expectation import expect
from dev.benchmarks.sizing.load import MOST, Load
from dev.benchmarks.sizing.measured import DrainMeasured, Measured
from dev.benchmarks.sizing.run import measure, tidy
from dev.benchmarks.sizing.schema import check_may_make, new_name
from tasks_app.cli import output
from tasks_app.cli.database import open_database, settings
from tasks_app.cli.endings import print_error
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import count

HOSTS, CHILDREN = (1, 2, 4, 8), (1, 2, 4, 8, 16)
TITLES = {"inserts": "one INSERT each", "groups": "no-op, in groups"}
SLOWDOWN = 1.3
"""Cores that share silicon: the same work takes so much more CPU where all of them are busy."""
_LETTERS = {"workers": "w", "database": "d", "beat": "b", "log": "l", "children": " "}
_GOOD = {
    "fsync": (("on",), "a crash loses the database. These figures are too good."),
    "synchronous_commit": (
        ("on", "remote_apply", "remote_write"),
        "commits may be lost in a crash.",
    ),
    "jit": (("off",), "what handlers ask may pay for compiling. ALTER ROLE … SET jit = off."),
}
"""Settings, their values that are good, and what is wrong with others."""
_BUSY = 0.5
"""Of its cores: beyond it others are in the way."""
_VERSION = "server_version"
_ROW_KB = 2.5
"""Of table and log, from a task's creation to its end."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What the command was told."""

    cores: int
    database_cores: int
    handler_ms: float
    threads: int

    @property
    def told(self) -> str:
        waits = f", and waits {self.handler_ms:g} ms for others" if self.handler_ms else ""
        return waits + (f"; {self.threads} threads a child" if self.threads > 1 else "")


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(1, 600), default=25, show_default=True, help="How long."
)
@click.option("--database-cores", type=click.IntRange(1, 1024), help="Of the database's server.")
@click.option("--cores", type=click.IntRange(1, 1024), help="Of a host of workers.")
@click.option(
    "--handler-ms",
    type=click.FloatRange(0, 3_600_000),
    default=0,
    help="How long a handler waits for others: a request to an API, say.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="In each child, for handlers that wait.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--alone", is_flag=True, hidden=True, help="Measure here, in TASKS_APP_SCHEMA.")
@output.json_option
def size(
    *,
    seconds: float,
    database_cores: int | None,
    cores: int | None,
    handler_ms: float,
    threads: int,
    yes: bool,
    alone: bool,
    json_: bool,
) -> None:
    """Put a short load on the database; say what to expect of it.

    It works in a schema of its own, which it drops, and never touches your tasks. It does take CPU
    and the disk of the server: not in your busiest hour. Counts of cores default to this
    machine's.
    """
    given = settings()
    if alone:
        output.print_json(Load(given, seconds).run())
        return
    here = os.cpu_count() or 1
    sizes = _Sizes(cores or here, database_cores or here, handler_ms, threads)
    schema = new_name()
    with open_database() as database:
        with database.begin() as connection:
            name, role = check_may_make(connection)
        _announce(given, schema, name, role, seconds)
        if not yes:
            click.confirm("Go on?", abort=True, err=True)
        for left in tidy(database):
            click.echo(f"Dropped {left}, which a run that was killed had left.", err=True)
    found = measure(given, schema, seconds)
    expected = _expected(found, sizes)
    if json_:
        output.print_json({**asdict(found), **asdict(sizes), "expected": expected})
    else:
        _tell(found, expected, sizes)


def _announce(given: Settings, schema: str, name: str, role: str, seconds: float) -> None:
    url = make_url(given.database)
    most = 2 * MOST
    told = (
        f"For {seconds:g} s or less this writes into a schema of its own, {schema}, in database "
        f"{name} of {url.host or 'the local socket'} as role {role}, and drops it. At most "
        f"{most:,} tasks, {most * _ROW_KB / 1e3:.0f} MB of tables and of log. Your tasks are not "
        "touched, but the server has up to one core of work more."
    )
    told += _busy(os.getloadavg()[0], os.cpu_count() or 1)
    click.echo("\n".join(_wrapped(told, 0)), err=True)


def _busy(load: float, cores: int) -> str:
    if load <= _BUSY * cores:
        return ""
    loaded = f"load {load:.1f} on {count(cores, 'core')}"
    return f" This machine is busy ({loaded}): the figures will be too low."


def _expected(found: Measured, sizes: _Sizes) -> list[dict[str, Any]]:
    """Return the rate of each number of hosts and children, and what limits it."""
    place = Deployment(
        children=1,
        cores=sizes.cores,
        database_cores=sizes.database_cores,
        flush_s=found.flush_ms / 1e3,
        trip_s=found.way_ms / 1e3,
        slowdown=SLOWDOWN,
    )
    kinds = {
        "inserts": (found.cost_of_inserts(sizes.handler_ms / 1e3), sizes.threads),
        "groups": (found.cost_of_groups(), 1),
    }
    return [
        _cell(kind, cost, replace(place, children=children, hosts=hosts, lanes=lanes))
        for kind, (cost, lanes) in kinds.items()
        for hosts in HOSTS
        for children in CHILDREN
    ]


def _cell(kind: str, cost: TaskCost, where: Deployment) -> dict[str, Any]:
    expected = expect(cost, where)
    return {
        "tasks": kind,
        "hosts": where.hosts,
        "children": where.children,
        "connections": where.connections,
        "rate": round(expected.rate, 1),
        "limit": expected.limit,
    }


def _tell(found: Measured, expected: list[dict[str, Any]], sizes: _Sizes) -> None:
    for line in (*_measured(found), *_advice(found.settings), ""):
        click.echo(line)
    click.echo("Computed from that, in tasks a second; limited by: w the workers' cores,")
    click.echo("d the database's cores, b beat; no letter: more children do more.")
    hosts_have = count(sizes.cores, "core")
    click.echo(f"Each host of workers has {hosts_have}, the database {sizes.database_cores}.")
    click.echo("INSERTs go through ctx.connection; by ctx.write they are twice as fast or more.")
    for kind, title in TITLES.items():
        click.echo(f"\n{title}{sizes.told if kind == 'inserts' else ''}")
        click.echo(f"{'children on each host':<22}" + "".join(f"{n:>11}" for n in CHILDREN))
        for hosts in HOSTS:
            cells = [e for e in expected if (e["tasks"], e["hosts"]) == (kind, hosts)]
            rates = "".join(f"{cell['rate']:>10,.0f}{_LETTERS[cell['limit']]}" for cell in cells)
            click.echo(f"{count(hosts, 'host'):<22}{rates}")


def _measured(found: Measured) -> Iterator[str]:
    version = found.settings[_VERSION]
    yield f"PostgreSQL {version}, measured for {found.seconds:.0f} s with one child:"
    yield f"round trip            {found.round_trip_ms:.2f} ms"
    yield (
        f"commit                {found.commit_ms:.2f} ms median, {found.commit_p99_ms:.2f} ms p99; "
        f"{found.flush_ms:.2f} ms for the disk"
    )
    yield f"create_task           {found.create_one:,.0f} a second, a commit each"
    yield f"create_tasks          {found.create_bulk:,.0f} tasks a second, 1,000 a commit"
    for kind, title in TITLES.items():
        drained: DrainMeasured = getattr(found, kind)
        yield (
            f"{title:<22}{drained.rate:,.0f} tasks a second; {drained.task_us:,.0f} us each, "
            f"{drained.child_us:,.0f} us its CPU"
        )
    pairs = [f"{name} {value}" for name, value in found.settings.items() if name != _VERSION]
    yield from _wrapped("settings              " + ", ".join(pairs), 22)


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(line, 80, subsequent_indent=" " * indent)


def _advice(settings: dict[str, str]) -> Iterator[str]:
    for name, (good, why) in _GOOD.items():
        if settings[name] not in good:
            yield from _wrapped(f"warn  {name} is {settings[name]}: {why}", 6)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and tell; what goes wrong is a sentence and an exit code, as of tasks-app."""
    try:
        size(args=arguments, standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        status = print_error(error)
        if status is None:
            raise
        sys.exit(status)


if __name__ == "__main__":
    main()
