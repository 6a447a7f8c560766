"""``pause``, ``limits``, ``breakers``, ``fair``, ``queues``: what may run when."""

from __future__ import annotations

from datetime import date
from typing import Any

import click

from tasks_app.actions import limits as of_limits
from tasks_app.actions import queues as of_queues
from tasks_app.actions.limits import override
from tasks_app.actions.tasks import unblock as unblocking
from tasks_app.cli import output
from tasks_app.cli.acting import add_commands, carry_out, command_of, params_of, print_done
from tasks_app.cli.arguments import options
from tasks_app.cli.database import as_why, caller, settings, transaction
from tasks_app.domain.explain.queues import standing
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, BreakerStanding
from tasks_app.domain.flow_control.limits import Limit
from tasks_app.domain.queues.queue import Queue, QueueOptions
from tasks_app.pool.flow_control import breaker as breaker_rows
from tasks_app.pool.flow_control.fair_queues import fair_queues
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api import limits as limit_rows
from tasks_app.runtime.api import queues as queue_rows
from tasks_app.runtime.api.limits import share_queue, unshare_queue

_which = options(
    click.argument("queue", required=False),
    click.option("--all", "every", is_flag=True, help="Every queue, also future ones."),
)


@click.command()
@_which
@params_of(of_queues.pause)
@click.option("--reason", "older", hidden=True, help="The same as --why.")
@output.as_json
def pause(queue: str | None, *, every: bool, older: str | None, json_: bool, **given: Any) -> None:
    """Stop a queue: its tasks wait; those that run already go on."""
    name = _chosen(queue, every=every)
    done = carry_out(of_queues.pause, name, {**given, "reason": given["reason"] or older})
    with transaction() as connection:
        alive = heartbeats.live(connection, settings().lease)
    served = sorted({each for worker in alive for each in worker.queues})
    is_served = bool(served) if every else name in served
    output.answer(done.said, {**done.fields, "served": is_served}, json_=json_)
    if not is_served and not every:
        others = f" Those that are served: {', '.join(served)}." if served else ""
        click.echo(f"No live worker serves the queue {name}.{others}", err=True)


@click.command()
@_which
@params_of(of_queues.resume)
@output.as_json
def resume(queue: str | None, *, every: bool, json_: bool) -> None:
    """Let a paused queue run again; with --all, every one."""
    print_done(carry_out(of_queues.resume, _chosen(queue, every=every)), json_=json_)


def _chosen(queue: str | None, *, every: bool) -> str:
    if every == (queue is not None):
        raise click.UsageError("Give a queue, or --all.")
    return EVERY_QUEUE if queue is None else queue


_LIMITS = ("kind", "target", "at a time", "rate", "burst")


@click.group()
def limits() -> None:
    """Limit how many tasks run at a time, or start in a period."""


@limits.command("list")
@output.as_json
def list_limits(*, json_: bool) -> None:
    """List all limits."""
    with transaction() as connection:
        found = limit_rows.list_limits(connection)
    output.print_list(found, _LIMITS, _limit_line, json_=json_)


add_commands(limits, of_limits)
limits.add_command(output.also(command_of(of_limits.remove_limit)), "drop")
unblock = command_of(unblocking)


def _limit_line(limit: Limit) -> tuple[Any, ...]:
    rate = None if limit.rate is None else f"{limit.rate}/{limit.span}"
    return limit.kind, limit.target, limit.most, rate, limit.burst


_BREAKERS = ("dependency", "state", "since", "mode", "calls", "held", "handlers", "reason")


@click.group()
def breakers() -> None:
    """Hold back tasks whose dependency is down: list, open, close."""


@breakers.command("list")
@output.as_json
def list_breakers(*, json_: bool) -> None:
    """List all breakers: how they stand, and how many tasks each holds."""
    with transaction() as connection:
        found = [_breaker_fields(standing) for standing in breaker_rows.find(connection)]
    output.print_list(found, _BREAKERS, lambda each: list(each.values()), json_=json_)


for name, mode, words in (
    ("open", BreakerMode.OPEN, "Hold all tasks that depend on it, until somebody says otherwise."),
    (
        "close",
        BreakerMode.CLOSED,
        "Let all its tasks go. It stays closed, whatever their outcomes are.",
    ),
    (
        "auto",
        BreakerMode.AUTO,
        "Leave it to the outcomes again. An open one lets probes through at once.",
    ),
):
    breakers.add_command(command_of(override, name, words, mode=mode))


def _breaker_fields(standing: BreakerStanding) -> dict[str, Any]:
    return {
        "dependency": standing.breaker.dependency,
        "state": str(standing.state),
        "since": standing.since,
        "mode": str(standing.mode),
        "calls": standing.calls,
        "held": standing.held,
        "handlers": ", ".join(standing.names),
        "reason": standing.reason,
    }


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
    output.print_list(found, ("queue", "weights other than 1"), _share_line, json_=json_)


def _share_line(of: dict[str, Any]) -> list[str]:
    weights = sorted(of["weights"].items())
    return [of["queue"], " ".join(f"{key}={weight:g}" for key, weight in weights)]


def _weight(given: str) -> tuple[str, float]:
    key, _, number = given.rpartition("=")
    try:
        return key, float(number)
    except ValueError:
        raise click.BadParameter(f"{given!r} is no key=number", param_hint="--weight") from None


_QUEUES = ("queue", "now", "windows", "only while", "defaults")


@click.group()
def queues() -> None:
    """Say when queues run, and what their tasks have by default."""


queues.add_command(pause)
queues.add_command(resume)


@queues.command("list")
@output.as_json
def list_queues(*, json_: bool) -> None:
    """List the queues that have settings."""
    with transaction() as connection:
        found = queue_rows.list_queues(connection)
    if json_:
        output.print_json([_queue_fields(queue) for queue in found])
    else:
        output.print_table(_QUEUES, map(_queue_line, found))


@queues.command()
@click.argument("queue")
@output.as_json
def show(queue: str, *, json_: bool) -> None:
    """Show the settings of a queue, and whether it runs now."""
    with transaction() as connection:
        found = queue_rows.get_queue(connection, queue)
    if found is None:
        runs = {"queue": queue, "runs": True}
        output.answer(f"Queue {queue} has no settings: it runs.", runs, json_=json_)
        return
    output.print_json(_queue_fields(found)) if json_ else output.print_fields(
        _queue_fields(found).items()
    )


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
        "--waiting-below",
        help="Run only while no due task of another queue has waited this long.",
    ),
    click.option("--retry", help="For tasks without their own: '5s,30s,1m', 'fixed 30s'."),
    click.option("--max-attempts", help="For tasks without their own: how often they may fail."),
    click.option(
        "--timeout",
        help="For tasks without their own: raised in the handler after this long.",
    ),
    click.option(
        "--hard-timeout",
        help="For tasks without their own: their process is killed after this long.",
    ),
)


@queues.command("set")
@click.argument("queue")
@rules
@as_why
@output.as_json
def set_(queue: str, *, json_: bool, **given: Any) -> None:
    """Change a queue. Options that are left out stay as they are, 'none' removes one."""
    options = _options(given)
    if not options:
        raise click.UsageError("Give an option: --window, --running-below, --timeout, …")
    with transaction() as connection:
        found = queue_rows.change_queue(connection, queue, by=caller(), **options)
    if found is None:
        runs = {"queue": queue, "runs": True}
        output.answer(f"Queue {queue} has no settings any more.", runs, json_=json_)
    else:
        output.answer(standing(found), _queue_fields(found), json_=json_)


add_commands(queues, of_queues)
queues.add_command(output.also(command_of(of_queues.remove)), "reset")


@queues.command()
@click.argument("name", required=False)
@click.argument("days", nargs=-1)
@click.option("--remove", is_flag=True, help="Delete it.")
@as_why
@output.as_json
def calendar(name: str | None, days: tuple[str, ...], *, remove: bool, json_: bool) -> None:
    """List calendars. With DAYS (2026-12-25) write one, for windows and schedules."""
    if remove == bool(days) and (remove or name is not None):
        raise click.UsageError("Give a name with days, or with --remove.")
    with transaction() as connection:
        if remove:
            done = queue_rows.remove_calendar(connection, str(name), by=caller())
            words = "removed" if done else "there was none"
            output.answer(words, {"name": name, "removed": bool(done)}, json_=json_)
        elif name is not None:
            written = queue_rows.set_calendar(connection, name, _dates(days), by=caller())
            said = {"name": name, "days": written}
            output.answer(f"{name}: {_days(written)}", said, json_=json_)
        else:
            found = queue_rows.list_calendars(connection)
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
        raise click.UsageError(f"--{option} {value} is neither a number nor none.") from None


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
    return [queue.queue, standing(queue), windows, queue.gate, defaults]


def _queue_fields(queue: Queue) -> dict[str, Any]:
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
