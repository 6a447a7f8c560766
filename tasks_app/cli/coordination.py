"""``groups`` and ``locks``: tasks that wait for one another."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import click

from tasks_app.actions import queues as queue_actions
from tasks_app.actions import tasks as task_actions
from tasks_app.cli import output
from tasks_app.cli.commands import add_commands, options
from tasks_app.cli.database import transaction
from tasks_app.domain.groups import Ended, GroupProgress
from tasks_app.pool import task_groups
from tasks_app.pool.locks import holders as rows
from tasks_app.pool.locks.holders import Contention, Held, Wait
from tasks_app.runtime.api.tasks import masked_errors

SHOWN = 20


@click.group()
def groups() -> None:
    """Show groups of tasks, their progress and their failures."""


@groups.command("list")
@output.most_option(20)
@click.option("--open", "only_open", is_flag=True, help="Only those that are not over.")
@output.json_option
def list_groups(most: int, *, only_open: bool, json_: bool) -> None:
    """List groups, the newest first."""
    with transaction() as connection:
        found = task_groups.newest_groups(connection, most, only_open=only_open)
    columns = ("id", "state", "total", "succeeded", "failed", "left", "created", "counted")
    output.print_list(found, columns, _line, json_=json_)


@groups.command()
@click.argument("group_id", type=int)
@output.json_option
def show(group_id: int, *, json_: bool) -> None:
    """Show the progress of a group, and the first failed members."""
    with transaction() as connection:
        found = task_groups.get_group(connection, group_id)
        if found is None:
            output.refuse(f"There is no group {group_id}. Run: tasks-app groups list")
        states: Counter[str] = Counter()
        bad: list[Ended] = []
        for ended in task_groups.member_results(connection, found):
            states[str(ended.state)] += 1
            if ended.error is not None and len(bad) < SHOWN:
                bad.append(ended)
        bad = masked_errors(connection, bad, by="task_id")
    if json_:
        output.print_json({"group": found, "states": states, "errors": bad})
        return
    output.print_fields(
        [
            ("id", found.id),
            ("state", _state(found)),
            ("members", f"{found.succeeded} succeeded, {found.failed} failed of {found.total}"),
            ("now", ", ".join(f"{number} {state}" for state, number in sorted(states.items()))),
            ("enough", found.enough),
            ("fail_fast", found.fail_fast or None),
            ("callback", found.callback_id),
            ("part of", found.part_of),
            ("created", found.created_at),
            ("counted", found.counted_at),
        ]
    )
    if bad:
        output.print_table(("id", "state", "error"), [(e.task_id, e.state, e.error) for e in bad])
    output.print_text(f"All members: tasks-app list --group {found.id}")


add_commands(groups, task_actions)


def _line(g: GroupProgress) -> tuple[Any, ...]:
    return g.id, _state(g), g.total, g.succeeded, g.failed, g.left, g.created_at, g.counted_at


def _state(group: GroupProgress) -> str:
    return "goes on" if group.outcome is None else str(group.outcome)


listed = options(
    click.argument("resource", required=False), output.most_option(20), output.json_option
)


@click.group()
def locks() -> None:
    """Show who holds which lock, and who waits."""


@locks.command("list")
@listed
def list_locks(resource: str | None, most: int, *, json_: bool) -> None:
    """List the locks that are held or waited for now."""
    with transaction() as connection:
        found = rows.find_holders(connection, resource, most=most)
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
    """Show the longest waits of seven days, and what blocked them."""
    with transaction() as connection:
        found = rows.longest_waits(connection, resource, most=most)
    columns = ("resource", "mode", "who", "task", "waited", "outcome", "times", "in the way")
    output.print_list(found, columns, _wait, json_=json_)


add_commands(locks, queue_actions)


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
        return "its task no longer runs; the next request gets it"
    if held.state == "held" and held.beyond > timedelta(0):
        return f"beyond its lease for {_seconds(held.beyond)}; the next request gets it"
    return held.blocked_by


def _seconds(span: timedelta | None) -> str | None:
    return None if span is None else f"{span.total_seconds():.1f} s"
