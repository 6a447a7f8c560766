"""``scan`` and ``work``: parts of the machine, run by hand."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time

import click

from tasks_app.cli.database import settings, transaction
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.settings import Settings
from tasks_app.pool.schema import check_schema
from tasks_app.runtime.assembly import run_work
from tasks_app.runtime.registry import HANDLERS, load_handlers
from tasks_app.runtime.supervisor import supervise, work_command

MOST = 64
"""Processes of a worker, or threads in each."""


def cores() -> int:
    """Return how many processors this process may use."""
    usable = getattr(os, "sched_getaffinity", None)  # not on macOS
    return min(MOST, len(usable(0)) if usable else os.cpu_count() or 1)


@click.command()
def scan() -> None:
    """Scan once: rescue what is over, publish what is due. Beat does it every second."""
    _ = settings().broker  # says what to do when there is none
    from tasks_app.broker.processes import beat_keeper  # noqa: PLC0415  Celery only where used
    from tasks_app.celery import app  # noqa: PLC0415

    keeper = beat_keeper(app)
    try:
        done = keeper.scan()
    finally:
        keeper.database.dispose()
    if done.skipped:
        click.echo("Somebody else is scanning just now.")
    else:
        click.echo(f"{done.published} ids published, {done.republished} messages published again")


@click.command()
@click.option("--drain", is_flag=True, help="End when nothing is due.")
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, MOST),
    default=cores,
    show_default="one per core",
    help="Processes.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, MOST),
    help="In each of them; default: TASKS_APP_THREADS.",
)
@click.option("--queue", "-q", "queues", multiple=True, help="Default: those of the handlers.")
@click.option("--alone", is_flag=True, hidden=True, help="Run here, without a parent.")
def work(
    *,
    drain: bool,
    concurrency: int,
    threads: int | None,
    queues: tuple[str, ...],
    alone: bool,
) -> None:
    """Run tasks without Celery and without a broker, straight from the pool.

    A parent process watches those that run the handlers: it replaces one that a task kills, and
    kills one whose task runs past its hard limit.
    """
    given = settings()
    threads = threads or given.threads
    _load(given)
    if not HANDLERS.names:
        raise ConfigurationError(
            "No handlers are known. Name the modules that declare them in TASKS_APP_IMPORTS."
        )
    if not alone:
        with transaction() as connection:
            check_schema(connection)
        arguments = ["work", "--alone", f"--threads={threads}", *["--drain"] * drain]
        command = work_command(*arguments, *(f"--queue={queue}" for queue in queues))
        healthy_for_s = given.healthy_for.total_seconds()
        sys.exit(supervise(command, concurrency, healthy_for_s, stay=not drain))
    _log_to_stderr()
    gc.freeze()  # what is loaded by now stays: no collection shall walk it
    run_work(given, queues=queues, threads=threads, drain=drain, handle_signals=True)


def _load(given: Settings) -> None:
    if not given.celery_app:
        load_handlers(given.modules)
        return
    from tasks_app.broker.celery_tasks.adoption import load_tasks  # noqa: PLC0415  as above

    load_tasks(given)


def _log_to_stderr() -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(level=logging.INFO, format="%(asctime)sZ %(levelname)s %(message)s")
