"""``pause``, ``resume``, ``queues``: when a queue runs, and the defaults of its tasks."""

from __future__ import annotations

from datetime import date
from typing import Any

import click

from tasks_app.actions import queues as of_queues
from tasks_app.cli import output
from tasks_app.cli.commands import (
    add_commands,
    command_of,
    options,
    params_of,
    print_result,
    run_action,
)
from tasks_app.cli.database import caller, settings, transaction, why_option
from tasks_app.domain.queues import Queue, QueueOptions, queue_status
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api import queues as queue_rows

_which = options(
    click.argument("queue", required=False),
    click.option("--all", "every", is_flag=True, help="Every queue, also future ones."),
)


@click.command()
@_which
@params_of(of_queues.pause)
@click.option("--reason", "older", hidden=True, help="The same as --why.")
@output.json_option
def pause(queue: str | None, *, every: bool, older: str | None, json_: bool, **given: Any) -> None:
    """Stop a queue: its tasks wait; those that run already go on."""
    name = _chosen(queue, every=every)
    done = run_action(of_queues.pause, name, {**given, "reason": given["reason"] or older})
    with transaction() as connection:
        alive = heartbeats.live_workers(connection, settings().lease)
    served = sorted({each for worker in alive for each in worker.queues})
    is_served = bool(served) if every else name in served
    output.print_answer(done.text, {**done.fields, "served": is_served}, json_=json_)
    if not is_served and not every:
        others = f" Those that are served: {', '.join(served)}." if served else ""
        click.echo(f"No live worker serves the queue {name}.{others}", err=True)


@click.command()
@_which
@params_of(of_queues.resume)
@output.json_option
def resume(queue: str | None, *, every: bool, json_: bool) -> None:
    """Let a paused queue run again; with --all, every one."""
    print_result(run_action(of_queues.resume, _chosen(queue, every=every)), json_=json_)


def _chosen(queue: str | None, *, every: bool) -> str:
    if every == (queue is not None):
        raise click.UsageError("Give a queue, or --all.")
    return EVERY_QUEUE if queue is None else queue


@click.group()
def queues() -> None:
    """Set when queues run, and the defaults of their tasks."""


queues.add_command(pause)
queues.add_command(resume)


@queues.command("list")
@output.json_option
def list_queues(*, json_: bool) -> None:
    """List the queues that have settings."""
    with transaction() as connection:
        found = queue_rows.list_queues(connection)
    if json_:
        output.print_json([_queue_fields(queue) for queue in found])
    else:
        columns = ("queue", "now", "windows", "only while", "defaults")
        output.print_table(columns, map(_queue_line, found))


@queues.command()
@click.argument("queue")
@output.json_option
def show(queue: str, *, json_: bool) -> None:
    """Show the settings of a queue, and whether it runs now."""
    with transaction() as connection:
        found = queue_rows.get_queue(connection, queue)
    if found is None:
        runs = {"queue": queue, "runs": True}
        output.print_answer(f"Queue {queue} has no settings: it runs.", runs, json_=json_)
        return
    fields = _queue_fields(found)
    output.print_json(fields) if json_ else output.print_fields(fields.items())


rules = options(
    click.option(
        "--window",
        "windows",
        multiple=True,
        help="Run only then: 'mon-fri 22:00-06:00 Europe/Berlin not on CALENDAR'. "
        "Several: in any of them. They replace those it had.",
    ),
    click.option("--running-below", help="Run only while fewer tasks of other queues run."),
    click.option(
        "--waiting-below", help="Run only while no due task of another queue has waited this long."
    ),
    click.option(
        "--only-while", help="Run only while the @load_gate function of this name says so."
    ),
    click.option("--retry", help="For tasks without their own: '5s,30s,1m', 'fixed 30s'."),
    click.option("--max-attempts", help="For tasks without their own: how often they may fail."),
    click.option(
        "--timeout", help="For tasks without their own: raised in the handler after this long."
    ),
    click.option(
        "--hard-timeout",
        help="For tasks without their own: their process is killed after this long.",
    ),
)


@queues.command("set")
@click.argument("queue")
@rules
@why_option
@output.json_option
def set_(queue: str, *, json_: bool, **given: Any) -> None:
    """Change a queue. Options that are left out stay as they are, 'none' removes one."""
    options = _options(given)
    if not options:
        raise click.UsageError("Give an option: --window, --running-below, --timeout, …")
    with transaction() as connection:
        found = queue_rows.change_queue(connection, queue, by=caller(), **options)
    if found is None:
        runs = {"queue": queue, "runs": True}
        output.print_answer(f"Queue {queue} has no settings any more.", runs, json_=json_)
    else:
        output.print_answer(queue_status(found), _queue_fields(found), json_=json_)


add_commands(queues, of_queues)
queues.add_command(output.hidden_alias(command_of(of_queues.remove_rules)), "reset")


@queues.command()
@click.argument("name", required=False)
@click.argument("days", nargs=-1)
@click.option("--remove", is_flag=True, help="Delete it.")
@why_option
@output.json_option
def calendar(name: str | None, days: tuple[str, ...], *, remove: bool, json_: bool) -> None:
    """List calendars. With DAYS (2026-12-25) write one, for windows and schedules."""
    if remove == bool(days) and (remove or name is not None):
        raise click.UsageError("Give a name with days, or with --remove.")
    with transaction() as connection:
        if remove:
            done = queue_rows.remove_calendar(connection, str(name), by=caller())
            words = "removed" if done else "there was none"
            output.print_answer(words, {"name": name, "removed": bool(done)}, json_=json_)
        elif name is not None:
            written = queue_rows.set_calendar(connection, name, _dates(days), by=caller())
            fields = {"name": name, "days": written}
            output.print_answer(f"{name}: {_days(written)}", fields, json_=json_)
        else:
            found = queue_rows.list_calendars(connection)
            if json_:
                output.print_json([{"name": n, "days": d} for n, d in found.items()])
                return
            output.print_table(("name", "days"), [[n, _days(d)] for n, d in found.items()])


def _options(given: dict[str, Any]) -> QueueOptions:
    options: Any = {word: value for word, value in given.items() if value}
    for word, value in options.items():
        if value in ("none", ("none",)):
            options[word] = None
        elif word in ("running_below", "max_attempts"):
            try:
                options[word] = int(value)
            except ValueError:
                option = word.replace("_", "-")
                problem = f"--{option} {value} is neither a number nor none."
                raise click.UsageError(problem) from None
    return options  # type: ignore[no-any-return]  # click's words are its keys


def _dates(days: tuple[str, ...]) -> list[date]:
    try:
        return [date.fromisoformat(day) for part in days for day in part.split(",")]
    except ValueError as error:
        raise click.UsageError(f"{error}. Write days as 2026-12-25.") from None


def _days(days: list[date]) -> str:
    return ", ".join(map(str, days))


def _queue_line(queue: Queue) -> list[Any]:
    windows = "; ".join(map(str, queue.windows))
    defaults = ", ".join(f"{name} {value}" for name, value in queue.defaults.items())
    return [queue.queue, queue_status(queue), windows, queue.gate, defaults]


def _queue_fields(queue: Queue) -> dict[str, Any]:
    return {
        "queue": queue.queue,
        "now": queue_status(queue),
        "runs": queue.runs,
        "windows": [str(window) for window in queue.windows] or None,
        "opens_at": queue.opens_at,
        "gate": queue.gate or None,
        "shut": queue.shut,
        **queue.defaults,
    }
