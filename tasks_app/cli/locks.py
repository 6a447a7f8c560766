"""``locks``: who holds what, who waited for whom; free a lock, change a limit."""

from __future__ import annotations

import sys
from datetime import timedelta

import click

from tasks_app.cli import output
from tasks_app.cli.database import caller, transaction
from tasks_app.domain.coordination.locks import MOST_COUNTED, parts_of
from tasks_app.pool.locks import report as rows
from tasks_app.pool.locks.report import Held
from tasks_app.runtime.locks.admin import free_lock, limit_lock

most = click.option("--most", type=click.IntRange(1, 1000), default=20, show_default=True)
of_resource = click.argument("resource", required=False)


@click.group()
def locks() -> None:
    """Who holds which lock, who waits, and which are fought over."""


@locks.command("list")
@of_resource
@most
@output.as_json
def list_(resource: str | None, most: int, *, json_: bool) -> None:
    """List what is held and waited for just now."""
    with transaction() as connection:
        found = rows.find(connection, resource, most=most)
    if json_:
        output.print_json(found)
        return
    columns = ("resource", "mode", "state", "who", "task", "for", "remark")
    lines = [
        (h.resource, h.mode, h.state, h.who, h.task_id, _seconds(h.age), _remark(h)) for h in found
    ]
    output.print_table(columns, lines)


@locks.command()
@of_resource
@most
@output.as_json
def report(resource: str | None, most: int, *, json_: bool) -> None:
    """Show which resources were waited for longest, and what became of the waits."""
    with transaction() as connection:
        found = rows.contention(connection, resource, most=most)
    if json_:
        output.print_json(found)
        return
    columns = (
        *("resource", "grants", "waits", "timed out", "denials", "taken over"),
        *("waited", "95 of 100", "longest", "held", "waiting", "most"),
    )
    lines = [
        (
            *(c.resource, c.grants, c.waits, c.timed_out, c.denials, c.taken_over),
            *(_seconds(c.waited), _seconds(c.waited_95), _seconds(c.waited_most)),
            *(c.held_now, c.waiting_now, c.most),
        )
        for c in found
    ]
    output.print_table(columns, lines)


@locks.command()
@of_resource
@most
@output.as_json
def waits(resource: str | None, most: int, *, json_: bool) -> None:
    """Show the longest waits of the last seven days, and who was in the way."""
    with transaction() as connection:
        found = rows.waits(connection, resource, most=most)
    if json_:
        output.print_json(found)
        return
    columns = ("resource", "mode", "who", "task", "waited", "outcome", "times", "in the way")
    lines = [
        (w.resource, w.mode, w.who, w.task_id, _seconds(w.waited), w.outcome, w.times, w.blocked_by)
        for w in found
    ]
    output.print_table(columns, lines)


@locks.command()
@click.argument("resource")
@click.option("--token", type=click.UUID, help="Only this holder; locks list --json shows it.")
@output.as_json
def free(resource: str, token: object, *, json_: bool) -> None:
    """Take a lock from whoever holds it. What he writes under its guard is refused from then on."""
    with transaction() as connection:
        whose = free_lock(connection, resource, token, by=caller())  # type: ignore[arg-type]
    if not whose:
        click.echo(f"Nobody holds {resource}. Run: tasks-app locks list", err=True)
        sys.exit(1)
    told = "\n".join(f"taken from {who}" for who in whose)
    output.answer(told, {"resource": resource, "taken_from": whose}, json_=json_)


@locks.command("limit")
@click.argument("resource")
@click.argument("number", type=click.IntRange(0, MOST_COUNTED), required=False)
@output.as_json
def limit_(resource: str, number: int | None, *, json_: bool) -> None:
    """Let so many count in a resource, whatever code says; without NUMBER, what code says."""
    parts_of(resource)
    with transaction() as connection:
        limit_lock(connection, resource, number, by=caller())
    words = "as code says" if number is None else f"at most {number}"
    output.answer(words, {"resource": resource, "most": number}, json_=json_)


def _remark(held: Held) -> str | None:
    if held.state == "held" and held.over:
        return "its task does not run any more; who asks next has it"
    if held.state == "held" and held.beyond > timedelta(0):
        return f"beyond its lease for {_seconds(held.beyond)}; who asks next has it"
    return held.blocked_by


def _seconds(span: timedelta | None) -> str | None:
    return None if span is None else f"{span.total_seconds():.1f} s"
