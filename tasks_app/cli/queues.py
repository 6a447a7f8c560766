"""``queues``: when a queue runs, and what its tasks have by default."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import caller, transaction
from tasks_app.cli.pauses import pause, resume
from tasks_app.domain.queues.queue import Queue, QueueOptions
from tasks_app.runtime.api import queues as rows

_LISTED = ("queue", "now", "windows", "only while", "defaults")


@click.group()
def queues() -> None:
    """Say when queues run, and what their tasks have by default."""


queues.add_command(pause)
queues.add_command(resume)


@queues.command("list")
@output.as_json
def list_(*, json_: bool) -> None:
    """List the queues of which something is said."""
    with transaction() as connection:
        found = rows.list_queues(connection)
    if json_:
        output.print_json([_fields(queue) for queue in found])
        return
    output.print_table(_LISTED, [_line(queue) for queue in found])


@queues.command()
@click.argument("queue")
@output.as_json
def show(queue: str, *, json_: bool) -> None:
    """Show what is said of a queue, and whether it runs now."""
    with transaction() as connection:
        found = rows.get_queue(connection, queue)
    if found is None:
        runs = {"queue": queue, "runs": True}
        output.answer(f"Nothing is said of queue {queue}: it runs.", runs, json_=json_)
        return
    output.print_json(_fields(found)) if json_ else output.print_fields(_fields(found).items())


def rules(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say something of a queue."""
    for option in reversed(
        (
            click.option(
                "--window",
                "windows",
                multiple=True,
                help="It runs only then: 'mon-fri 22:00-06:00 Europe/Berlin not on CALENDAR'. "
                "Several: in any of them; in place of those it had.",
            ),
            click.option("--running-below", help="Only while fewer tasks of other queues run."),
            click.option(
                "--waiting-below",
                help="Only while no due task of another queue has waited for so long.",
            ),
            click.option("--retry", help="Of tasks that say nothing: '5s,30s,1m', 'fixed 30s'."),
            click.option("--max-attempts", help="The same: how often they may fail."),
            click.option("--timeout", help="The same: raised in the handler after this long."),
            click.option("--hard-timeout", help="The same: its process is killed."),
        )
    ):
        command = option(command)
    return command


@queues.command("set")
@click.argument("queue")
@rules
@output.as_json
def set_(queue: str, *, json_: bool, **given: Any) -> None:
    """Say something of a queue; what is left out stays, 'none' takes back."""
    options = _options(given)
    if not options:
        raise click.UsageError("Say something: --window, --running-below, --timeout, …")
    with transaction() as connection:
        found = rows.change_queue(connection, queue, by=caller(), **options)
    if found is None:
        runs = {"queue": queue, "runs": True}
        output.answer(f"Nothing is said of queue {queue} any more.", runs, json_=json_)
    else:
        output.answer(standing(found), _fields(found), json_=json_)


@queues.command()
@click.argument("queue")
@output.as_json
def reset(queue: str, *, json_: bool) -> None:
    """Take back all that is said of a queue, but not its pause."""
    with transaction() as connection:
        done = rows.reset_queue(connection, queue, by=caller())
    words = "reset" if done else "nothing was said"
    output.answer(words, {"queue": queue, "reset": bool(done)}, json_=json_)


@queues.command()
@click.argument("name", required=False)
@click.argument("days", nargs=-1)
@click.option("--remove", is_flag=True, help="Delete it.")
@output.as_json
def calendar(name: str | None, days: tuple[str, ...], *, remove: bool, json_: bool) -> None:
    """List calendars; with DAYS (2026-12-25) write one: windows do not open on them."""
    if remove == bool(days) and (remove or name is not None):
        raise click.UsageError("Give a name with days, or with --remove.")
    with transaction() as connection:
        if remove:
            done = rows.remove_calendar(connection, str(name), by=caller())
            words = "removed" if done else "there was none"
            output.answer(words, {"name": name, "removed": bool(done)}, json_=json_)
        elif name is not None:
            written = rows.set_calendar(connection, name, _dates(days), by=caller())
            said = {"name": name, "days": written}
            output.answer(f"{name}: {_days(written)}", said, json_=json_)
        else:
            found = rows.list_calendars(connection)
            if json_:
                output.print_json([{"name": n, "days": d} for n, d in found.items()])
                return
            output.print_table(("name", "days"), [[n, _days(d)] for n, d in found.items()])


def _options(given: dict[str, Any]) -> QueueOptions:
    said: Any = {word: value for word, value in given.items() if value}
    for word, value in said.items():
        if value in ("none", ("none",)):
            said[word] = None
        elif word in ("running_below", "max_attempts"):
            said[word] = _integer(word, value)
    options: QueueOptions = said
    return options


def _integer(word: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        option = word.replace("_", "-")
        raise click.UsageError(f"--{option} {value} is no number, nor none.") from None


def _dates(days: tuple[str, ...]) -> list[date]:
    try:
        return [date.fromisoformat(day) for part in days for day in part.split(",")]
    except ValueError as error:
        raise click.UsageError(f"{error}. Write days as 2026-12-25.") from None


def _days(days: list[date]) -> str:
    return ", ".join(map(str, days))


def standing(queue: Queue) -> str:
    """Say whether it runs, and why not."""
    if queue.paused_since is not None:
        until = f" until {_instant(queue.resume_at)}" if queue.resume_at else ""
        reason = f": {queue.reason}" if queue.reason else ""
        return f"paused since {_instant(queue.paused_since)}{until}{reason}"
    if not queue.is_open:
        opens_at = queue.opens_at
        return f"closed until {_instant(opens_at)}" if opens_at else "closed for a year and longer"
    return f"shut: others are {queue.shut}" if queue.shut else "runs"


def _line(queue: Queue) -> list[Any]:
    windows = "; ".join(map(str, queue.windows))
    defaults = ", ".join(f"{name} {value}" for name, value in queue.defaults.items())
    return [
        queue.queue,
        standing(queue),
        windows,
        queue.gate,
        defaults,
    ]


def _fields(queue: Queue) -> dict[str, Any]:
    return {
        "queue": queue.queue,
        "now": standing(queue),
        "runs": queue.runs,
        "windows": [str(window) for window in queue.windows] or None,
        "opens_at": queue.opens_at,
        "gate": queue.gate or None,
        "shut": queue.shut,
        **queue.defaults,
    }


def _instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
