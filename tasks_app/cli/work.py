"""``work`` and ``scan``: tasks without Celery."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Connection

from tasks_app.cli import output
from tasks_app.cli.database import load_modules, settings, transaction
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import MIB, count, parse_bytes
from tasks_app.domain.errors import EXIT_NO, EXIT_UNREACHABLE, ConfigurationError
from tasks_app.domain.queues import queue_status
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.options import QUEUE
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.row_by_row import Refusal, refusals
from tasks_app.pool.operations.diagnostics import due_tasks_left
from tasks_app.pool.operations.grants import check_may_run
from tasks_app.pool.schema import check_schema
from tasks_app.pool.tables import EVERY_QUEUE, database_now
from tasks_app.runtime.api.queues import list_queues
from tasks_app.runtime.flow_control.breakers import enter_breakers
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.handlers.time_limits import check_hard_limit
from tasks_app.runtime.health_files import resident_bytes
from tasks_app.runtime.schedules.declared import synchronise
from tasks_app.runtime.scoreboard import temporary_folder
from tasks_app.runtime.statistics import RUN_COUNTS, read_counts
from tasks_app.runtime.tracing.run_logs import JsonLines
from tasks_app.runtime.worker.places import RECYCLED
from tasks_app.runtime.worker.standalone import RecycleLimits, run_work
from tasks_app.runtime.worker.supervisor import (
    WorkerEnd,
    heed_early_signals,
    supervise,
    work_command,
)

log = quiet_logger(__name__)
END_PATIENCE_S = 5  # how long threads and exit functions may take at the end of a process
MOST = 64  # processes of a worker, or threads in each


def cores() -> int:
    usable = getattr(os, "sched_getaffinity", None)  # not on macOS
    return min(MOST, len(usable(0)) if usable else os.cpu_count() or 1)


@click.command()
@output.json_option
def scan(*, json_: bool) -> None:
    """Scan once: rescue tasks without a lease, publish due ones.

    Beat does it every second.
    """
    _ = settings().broker  # raises with advice when there is none
    from tasks_app.broker.processes import beat_leader  # noqa: PLC0415  Celery only where used
    from tasks_app.celery import app  # noqa: PLC0415

    with transaction() as connection:
        _check_schema(connection)
    leader = beat_leader(app)
    try:
        published = leader.scan().published
    finally:
        leader.database.dispose()
    words = f"{count(published, 'id')} published"
    output.print_answer(words, {"published": published}, json_=json_)


def _check_schema(connection: Connection) -> None:
    notice = check_schema(connection)
    if notice:
        click.echo(notice, err=True)


def _queues(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Read names of queues, also several in one text, as Celery does."""
    queues = tuple(queue.strip() for text in given for queue in text.split(","))
    for queue in queues:
        if not QUEUE.fullmatch(queue):
            raise click.BadParameter(f"no queue is called {queue[:60]!r}.")
    return queues


def _memory(_: click.Context, __: click.Parameter, given: str | None) -> int | None:
    try:
        return None if given is None else parse_bytes(given)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


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
    help="Threads in each process. Default: TASKS_APP_THREADS.",
)
@click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    callback=_queues,
    help="Only this queue, or these: mail,reports. Default: those of the handlers.",
)
@click.option(
    "--max-tasks",
    type=click.IntRange(1),
    help="Replace a process after this many tasks.",
)
@click.option(
    "--max-memory",
    callback=_memory,
    metavar="SIZE",
    help="Replace a process that has more than this in memory between tasks: 512MB.",
)
@click.option("--alone", is_flag=True, hidden=True, help="Run here, without a parent.")
@click.option("--counts", type=click.Path(path_type=Path), hidden=True, help="Count in this file.")
@output.json_option
def work(
    *,
    drain: bool,
    concurrency: int,
    threads: int | None,
    queues: tuple[str, ...],
    max_tasks: int | None,
    max_memory: int | None,
    alone: bool,
    counts: Path | None,
    json_: bool,
) -> None:
    """Run tasks straight from the pool: no Celery, no broker.

    A parent process watches those that run the handlers: it replaces one that a task kills, and
    kills one whose task runs past its hard limit.

    With --drain it prints what ran, what is still due, and why; exit 1 if a task is.
    """
    if json_ and not drain:
        raise click.UsageError("--json prints what was drained: it needs --drain.")
    heed_early_signals()
    given = settings()
    threads = threads or given.threads
    if given.celery_app:
        from tasks_app.broker.task_loading import load_tasks  # noqa: PLC0415  it imports Celery

        load_tasks(given)
    else:
        load_modules()
    if not HANDLERS.names:
        raise ConfigurationError(
            "No handlers are known. Name the modules that declare them in TASKS_APP_IMPORTS."
        )
    check_hard_limit(HANDLERS, given.timeout, given.hard_timeout)
    if not alone:
        with transaction() as connection:
            _check_schema(connection)
            synchronise(connection, HANDLERS)  # a role without grants is refused here, once
            enter_breakers(connection, HANDLERS)
            check_may_run(connection, logs=given.transitions != "off")
        held = resident_bytes()  # as much as each process has at its start
        if max_memory is not None and max_memory <= held:
            raise click.UsageError(
                f"--max-memory is less than the {held // MIB} MB of a process that has run "
                "nothing. Give more."
            )
        arguments = ["work", "--alone", f"--threads={threads}", *["--drain"] * drain]
        arguments += [f"--max-tasks={max_tasks}"] * (max_tasks is not None)
        arguments += [f"--max-memory={(max_memory or 0) / MIB}MB"] * (max_memory is not None)
        command = work_command(*arguments, *(f"--queue={queue}" for queue in queues))
        healthy_for_s = given.healthy_for.total_seconds()
        run = partial(supervise, children=concurrency, healthy_for_s=healthy_for_s, stay=not drain)
        served = queues or HANDLERS.queues
        _log_to_stderr(given)
        sys.exit(_drain(run, command, served, json_=json_) if drain else run(command).status)
    if counts is not None:
        RUN_COUNTS.into(counts)
    _log_to_stderr(given)
    gc.freeze()  # what is loaded by now stays, so that no collection walks it
    status = 1
    limits = RecycleLimits(max_tasks, max_memory)
    try:
        recycled = run_work(
            given, queues=queues, threads=threads, drain=drain, handle_signals=True, limits=limits
        )
        status = RECYCLED if recycled else 0
    finally:  # what a handler left and that lives on does not keep the process
        timer = threading.Timer(END_PATIENCE_S, _end, (status,))
        timer.daemon = True
        timer.start()
        # If it lets no thread run, or the interpreter has ended:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.alarm(2 * END_PATIENCE_S)
    sys.exit(status)


def _end(status: int) -> None:
    main = threading.main_thread()  # it waits for the others
    alive = [each.name for each in threading.enumerate() if not (each.daemon or each is main)]
    log.warning("ended, although these threads did not: %s", ", ".join(alive))
    os._exit(status)


def _drain(
    run: Callable[[list[str]], WorkerEnd], command: list[str], queues: Sequence[str], *, json_: bool
) -> int:
    with transaction() as connection:
        since = database_now(connection)
    with tempfile.NamedTemporaryFile(prefix="tasks_app-counts-", dir=temporary_folder()) as file:
        ended = run([*command, f"--counts={file.name}"])
        ran = read_counts(Path(file.name))
    with transaction() as connection:
        left = unrunnable_tasks(connection, queues, since, ended)
        refused = [each for each in refusals(connection) if each.at >= since]
    print_drained(ran, left, refused, json_=json_, stopped_by=ended.stopped_by)
    return EXIT_NO if left or refused else ended.status


def unrunnable_tasks(
    connection: Connection, queues: Sequence[str], since: datetime, ended: WorkerEnd
) -> list[dict[str, Any]]:
    """Return the due tasks of these queues that no worker can run, by name, with the reason.

    After a complete drain: those that were due when it began, at ``since``.
    """
    reason = "the reason is unknown"
    if ended.status == EXIT_UNREACHABLE:
        reason = "the processes got no connection: the database has none left"
    if ended.stopped_by is not None:
        reason = "the drain was stopped before it reached them"
    if ended.status == EXIT_UNREACHABLE or ended.stopped_by is not None:
        since = database_now(connection)
    stopped = {each.queue: queue_status(each) for each in list_queues(connection) if not each.runs}
    found = []
    for each in due_tasks_left(connection, queues, since):
        status = stopped.get(each.queue) or stopped.get(EVERY_QUEUE)
        why = f"the queue is {status}" if status else each.parked or reason
        found.append({**each._asdict(), "why": why.rstrip(".")})
    return found


def print_drained(
    ran: Mapping[State, int],
    left: Sequence[Mapping[str, Any]],
    refused: Sequence[Refusal],
    *,
    json_: bool,
    stopped_by: str | None = None,
) -> None:
    """Print how many runs led to each state, what stopped it, and what is left or was refused."""
    names = {State.PENDING: "to run again"}
    ends = ", ".join(f"{n} {names.get(s, s.lower())}" for s, n in sorted(ran.items()))
    words = [f"{count(sum(ran.values()), 'run')} ended: {ends}." if ran else "Nothing ran."]
    if stopped_by is not None:
        words.append(f"It was stopped by {stopped_by}.")
    if left:
        words.append(f"{count(sum(each['number'] for each in left), 'due task')} left:")
    words += [
        f"  {each['number']} {each['name']} in {each['queue']}: {each['why']}. "
        f"More: tasks-app explain {each['first']}"
        for each in left
    ]
    words += [f"{each.what} refused: {each.rows} ({each.why})." for each in refused]
    rows = [{"what": each.what, "rows": each.rows, "why": each.why} for each in refused]
    found = {"ran": ran, "left": left, "refused": rows, "stopped_by": stopped_by}
    output.print_answer("\n".join(words), found, json_=json_)


def _log_to_stderr(given: Settings) -> None:
    if given.log_format == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines())
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        return
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)sZ %(process)d %(levelname)s %(message)s"
    )
