"""``run-now``, ``reschedule``, ``hold`` and the like: what an operator does to tasks that wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.arguments import moment, options
from tasks_app.cli.tasks.bulk import each, many
from tasks_app.cli.tasks.filters import selects, waiting_filters, why
from tasks_app.domain.operations.selection import DONE, Action
from tasks_app.runtime.api import amend_waiting
from tasks_app.runtime.api.amend_waiting import Changed

_tasks = options(
    click.argument("ids", nargs=-1, type=int),
    waiting_filters,
    why,
    output.as_json,
)
"""Which tasks, and why."""


_rate = click.option("--rate", metavar="N/TIME", help="So many in which time: 50/1s.")
"""They become due one after the other, not all at once."""


@click.command("run-now")
@_rate
@_tasks
def run_now(ids: tuple[int, ...], **given: Any) -> None:
    """Make waiting tasks due now.

    By id, or all that the options select. It ends the wait for a date, for a
    retry, and for a release.
    """
    _act(Action.RUN_NOW, amend_waiting.run_task_now, ids, given, "rate")


@click.command()
@click.option("--at", metavar="INSTANT", help="ISO 8601 with its zone: 2026-01-31T09:00+01:00.")
@click.option("--in", "delay", metavar="TIME", help="So long from now: 30m, 6h, 2d.")
@_tasks
def reschedule(ids: tuple[int, ...], at: str | None, **given: Any) -> None:
    """Give waiting tasks another date.

    By id, or all that the options select. A held task stays held, and has the
    new date when it is released.
    """
    if (at is None) == (given["delay"] is None):
        raise click.UsageError("Give --at or --in, and not both.")
    given["at"] = None if at is None else moment(at, "--at")
    _act(Action.RESCHEDULE, amend_waiting.reschedule_task, ids, given, "at", "delay")


@click.command()
@click.option(
    "--to", "to_priority", type=click.IntRange(0, 9), required=True, help="0 goes first, 9 last."
)
@_tasks
def reprioritise(ids: tuple[int, ...], **given: Any) -> None:
    """Give waiting tasks another priority.

    By id, or all that the options select.
    """
    _act(Action.REPRIORITISE, amend_waiting.reprioritise_task, ids, given, "to_priority")


@click.command()
@click.option("--to", "to_queue", metavar="QUEUE", required=True, help="Their new queue.")
@_tasks
def move(ids: tuple[int, ...], **given: Any) -> None:
    """Put waiting tasks into another queue.

    By id, or all that the options select. A message that is out may still
    bring a task to a worker of its old queue.
    """
    _act(Action.MOVE, amend_waiting.move_task, ids, given, "to_queue")


@click.command()
@_tasks
def hold(ids: tuple[int, ...], **given: Any) -> None:
    """Keep waiting tasks from running.

    By id, or all that the options select. They wait until they are released; one
    that has an expires_at still expires.
    """
    _act(Action.HOLD, amend_waiting.hold_task, ids, given)


@click.command()
@_rate
@_tasks
def release(ids: tuple[int, ...], **given: Any) -> None:
    """Give held tasks their dates back.

    By id, or all that the options select. A date that has passed means now, or
    with --rate one after the other; a later one stays.
    """
    _act(Action.RELEASE, amend_waiting.release_task, ids, given, "rate")


@click.command()
@_tasks
def enable(ids: tuple[int, ...], **given: Any) -> None:
    """Let disabled tasks run when they are due.

    By id, or all that the options select.
    """
    _act(Action.ENABLE, amend_waiting.enable_task, ids, given)


@click.command()
@_tasks
def disable(ids: tuple[int, ...], **given: Any) -> None:
    """Have waiting tasks end as SKIPPED when they are due. To keep them, use hold.

    By id, or all that the options select.
    """
    _act(Action.DISABLE, amend_waiting.disable_task, ids, given)


def _act(
    action: Action,
    verb: Callable[..., Any],
    ids: tuple[int, ...],
    given: dict[str, Any],
    *named: str,
) -> None:
    """Act on ids one by one, else in a bulk; ``named`` are the options that select nothing."""
    json_ = given.pop("json_")
    words = {name: given.pop(name) for name in (*named, "why")}
    words = {name: value for name, value in words.items() if value is not None}
    if not ids or selects(given) or "rate" in words:
        many(action, ids, {**given, **words}, json_=json_)
    else:
        said = {Changed.CHANGED: DONE[action]}
        each(ids, partial(verb, **words), {Changed.CHANGED}, said, json_=json_)
