"""``locks``: who holds what, who waited for whom; free a lock, change a limit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from tasks_app.actions import limits
from tasks_app.cli import output
from tasks_app.cli.acting import add_commands
from tasks_app.cli.arguments import options
from tasks_app.cli.database import transaction
from tasks_app.pool.locks import report as rows
from tasks_app.pool.locks.report import Contention, Held, Wait

listed = options(
    click.argument("resource", required=False),
    click.option(
        "--most",
        type=click.IntRange(1, 1000),
        default=20,
        show_default=True,
        help="At most so many.",
    ),
    output.as_json,
)


@click.group()
def locks() -> None:
    """Show who holds which lock, and who waits."""


@locks.command("list")
@listed
def list_(resource: str | None, most: int, *, json_: bool) -> None:
    """List the locks that are held or waited for now."""
    with transaction() as connection:
        found = rows.find(connection, resource, most=most)
    columns = ("resource", "mode", "state", "who", "task", "for", "remark")
    output.print_list(found, columns, _held, json_=json_)


@locks.command()
@listed
def report(resource: str | None, most: int, *, json_: bool) -> None:
    """Show which resources were waited for longest."""
    with transaction() as connection:
        found = rows.contention(connection, resource, most=most)
    columns = (
        *("resource", "grants", "waits", "timed out", "denials", "taken over"),
        *("waited", "95 of 100", "longest", "held", "waiting", "most"),
    )
    output.print_list(found, columns, _contention, json_=json_)


@locks.command()
@listed
def waits(resource: str | None, most: int, *, json_: bool) -> None:
    """Show the longest waits of seven days, and who was in the way."""
    with transaction() as connection:
        found = rows.waits(connection, resource, most=most)
    columns = ("resource", "mode", "who", "task", "waited", "outcome", "times", "in the way")
    output.print_list(found, columns, _wait, json_=json_)


add_commands(locks, limits)


def _held(h: Held) -> tuple[Any, ...]:
    return h.resource, h.mode, h.state, h.who, h.task_id, _seconds(h.age), _remark(h)


def _contention(c: Contention) -> tuple[Any, ...]:
    return (
        *(c.resource, c.grants, c.waits, c.timed_out, c.denials, c.taken_over),
        *(_seconds(c.waited), _seconds(c.waited_95), _seconds(c.waited_most)),
        *(c.held_now, c.waiting_now, c.most),
    )


def _wait(w: Wait) -> tuple[Any, ...]:
    waited = _seconds(w.waited)
    return w.resource, w.mode, w.who, w.task_id, waited, w.outcome, w.times, w.blocked_by


def _remark(held: Held) -> str | None:
    if held.state == "held" and held.over:
        return "its task no longer runs; the next to ask gets it"
    if held.state == "held" and held.beyond > timedelta(0):
        return f"beyond its lease for {_seconds(held.beyond)}; the next to ask gets it"
    return held.blocked_by


def _seconds(span: timedelta | None) -> str | None:
    return None if span is None else f"{span.total_seconds():.1f} s"
