"""``scan`` and ``work``: parts of the machine, run by hand."""

from __future__ import annotations

import gc
import logging
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


@click.command()
def scan() -> None:
    """Scan once: rescue what is over, publish what is due. Beat does it every second."""
    _ = settings().broker  # says what to do when there is none
    from tasks_app.broker.processes import beat_keeper  # noqa: PLC0415  Celery only where used
    from tasks_app.celery import app  # noqa: PLC0415

    with transaction() as connection:
        _tell(check_schema(connection))
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
@click.option("--concurrency", "-c", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--queue", "-q", "queues", multiple=True, help="Default: those of the handlers.")
@click.option("--alone", is_flag=True, hidden=True, help="Run here, without a parent.")
def work(*, drain: bool, concurrency: int, queues: tuple[str, ...], alone: bool) -> None:
    """Run tasks without Celery and without a broker, straight from the pool.

    A parent process watches the one that runs the handlers: it replaces it when a task kills it,
    and kills it when a task runs past its hard limit.
    """
    given = settings()
    _load(given)
    if not HANDLERS.names:
        raise ConfigurationError(
            "No handlers are known. Name the modules that declare them in TASKS_APP_IMPORTS."
        )
    if not alone:
        with transaction() as connection:
            _tell(check_schema(connection))
        arguments = ["work", "--alone", f"--concurrency={concurrency}", *["--drain"] * drain]
        command = work_command(*arguments, *(f"--queue={queue}" for queue in queues))
        sys.exit(supervise(command, given.healthy_for.total_seconds()))
    _log_to_stderr()
    gc.freeze()  # what is loaded by now stays: no collection shall walk it
    run_work(given, queues=queues, concurrency=concurrency, drain=drain, handle_signals=True)


def _tell(notice: str | None) -> None:
    if notice:
        click.echo(notice, err=True)


def _load(given: Settings) -> None:
    if not given.celery_app:
        load_handlers(given.modules)
        return
    from tasks_app.broker.celery_tasks.adoption import load_tasks  # noqa: PLC0415  as above

    load_tasks(given)


def _log_to_stderr() -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(level=logging.INFO, format="%(asctime)sZ %(levelname)s %(message)s")
