"""``groups``: which run, how far they are, and how their members ended."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from tasks_app.actions import work
from tasks_app.cli import output
from tasks_app.cli.acting import add_commands
from tasks_app.cli.database import transaction
from tasks_app.domain.coordination.groups import Ended, GroupProgress
from tasks_app.pool.groups import browse
from tasks_app.runtime.encryption.older_texts import masked_errors

SHOWN = 20
_LISTED = ("id", "state", "total", "succeeded", "failed", "left", "created", "counted")
group_id = click.argument("group_id", type=int)


@click.group()
def groups() -> None:
    """Show groups of tasks: how far they are, which have failed."""


@groups.command("list")
@click.option(
    "--most", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many."
)
@click.option("--open", "only_open", is_flag=True, help="Only those that are not over.")
@output.as_json
def list_(most: int, *, only_open: bool, json_: bool) -> None:
    """List groups, the newest first."""
    with transaction() as connection:
        found = browse.newest(connection, most, only_open=only_open)
    output.print_list(found, _LISTED, _line, json_=json_)


@groups.command()
@group_id
@output.as_json
def show(group_id: int, *, json_: bool) -> None:
    """Show how far a group is, and the first members that did not succeed."""
    with transaction() as connection:
        found = browse.get(connection, group_id)
        if found is None:
            output.refuse(f"There is no group {group_id}. Run: tasks-app groups list")
        states: Counter[str] = Counter()
        bad: list[Ended] = []
        for ended in browse.results(connection, found):
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
    output.say(f"All members: tasks-app list --group {found.id}")


add_commands(groups, work)


def _line(g: GroupProgress) -> tuple[Any, ...]:
    return g.id, _state(g), g.total, g.succeeded, g.failed, g.left, g.created_at, g.counted_at


def _state(group: GroupProgress) -> str:
    return "goes on" if group.outcome is None else str(group.outcome)
