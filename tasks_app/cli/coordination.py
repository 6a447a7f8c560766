"""``groups``, ``flows``, ``events`` and ``locks``: what tasks wait for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from tasks_app.actions import queues as queue_actions
from tasks_app.actions import tasks as task_actions
from tasks_app.cli import output
from tasks_app.cli.commands import add_commands, json_object, options
from tasks_app.cli.database import caller, load_modules, transaction
from tasks_app.domain.durations import count
from tasks_app.domain.events import StoredEvent
from tasks_app.domain.flows import (
    FlowProgress,
    FlowState,
    FlowStep,
    is_undone,
    items_in_words,
    step_in_words,
    to_mend,
    waits_in_words,
)
from tasks_app.domain.groups import Ended, GroupProgress
from tasks_app.domain.rerun import steps_from
from tasks_app.pool import events as event_rows
from tasks_app.pool import flows as flow_rows
from tasks_app.pool import task_groups
from tasks_app.pool.locks import holders as rows
from tasks_app.pool.locks.holders import Contention, Held, Wait
from tasks_app.pool.tables import database_now
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.flows import rerun_flow
from tasks_app.runtime.api.tasks import masked_errors, masked_texts
from tasks_app.runtime.api.undo import undo_flow, would_undo
from tasks_app.runtime.encryption.values import masks, shown

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


@click.group()
def flows() -> None:
    """Show flows: which steps wait, and for what."""


@flows.command("list")
@output.most_option(20)
@click.option("--name", help="Only flows of this name.")
@click.option("--key", help="Only flows with this key.")
@click.option(
    "--state",
    type=click.Choice([str(state) for state in FlowState]),
    help="Only flows in this state.",
)
@output.json_option
def list_flows(most: int, *, json_: bool, **filters: Any) -> None:
    """List flows, the newest first. A stalled one stands because a step failed."""
    with transaction() as connection:
        found = flow_rows.newest_flows(connection, most, **filters)
        now = database_now(connection)
    columns = ("id", "state", "name", "key", "steps", "succeeded", "failed", "changed")
    output.print_list(found, columns, partial(_flow_line, now), json_=json_)


def _flow_line(now: datetime, f: FlowProgress) -> tuple[Any, ...]:
    changed = output.format_instant(f.changed_at, now)
    return f.id, f.state, f.name, f.key, f.total, f.succeeded, f.failed, changed


@flows.command("show")
@click.argument("flow_id", type=int)
@output.json_option
def show_flow(flow_id: int, *, json_: bool) -> None:
    """Show each step of a flow, what it waits for, and its error."""
    with transaction() as connection:
        found, now = flow_rows.get_flow(connection, flow_id), database_now(connection)
        if found is None:
            output.refuse(f"There is no flow {flow_id}. Run: tasks-app flows list")
        steps = masked_errors(connection, found.steps, by="task_id")
        tried = browse.last_causes(connection, [step.task_id for step in steps if step.attempt])
        causes = masked_texts(connection, tried)
    rules = masks()
    found = replace(
        found,
        steps=tuple(replace(s, result=rules.value(s.task, shown(s.result))) for s in steps),
    )
    if json_:
        output.print_json(found)
        return
    output.print_fields(
        [
            ("id", found.id),
            ("name", found.name),
            ("key", found.key),
            ("state", found.state),
            ("steps", f"{found.succeeded} succeeded, {found.failed} failed of {found.total}"),
            ("on failure", found.on_failure),
            ("created", found.created_at),
            ("changed", found.changed_at),
        ]
    )
    columns = ("step", "state", "task", "waits for", "ended")
    lines = [
        (
            step.name,
            step_in_words(step, now),
            str(step.task_id),
            ", ".join(_waited_for(step, now)),
            output.format_instant(step.ended_at, now),
        )
        for step in steps
    ]
    errors = [step.error or causes.get(step.task_id, "") for step in steps]
    output.print_rows(columns, lines, errors, remark="error", cut=("step", "waits for"))
    bad = [step.task_id for step in to_mend(steps)]
    if bad and found.state is not FlowState.SUCCEEDED:
        more = len(bad) < found.failed and not is_undone(steps)
        which = f"--group {found.id} --state FAILED" if more else output.shown_ids(bad)
        output.print_text(f"To go on, fix the cause, then: tasks-app requeue {which}")


def _waited_for(step: FlowStep, now: datetime) -> list[str]:
    waits = step.items is not None and step.items.left and step.end is None
    items = [items_in_words(step.items)] if waits and step.items else []
    return [*waits_in_words(step, now), *items]


@flows.command()
@click.argument("flow_id", type=int)
@click.option("--from", "step", metavar="STEP", required=True, help="The step to run again.")
@click.option("--payload", metavar="JSON", help="Its payload from now on. Default: its own.")
@click.option("--dry-run", is_flag=True, help="Only show which steps would run; change nothing.")
@click.option("--why", default="", metavar="TEXT", help="Why; audit and trail show it.")
@output.json_option
def rerun(
    flow_id: int, step: str, payload: str | None, *, dry_run: bool, why: str, json_: bool
) -> None:
    """Run a step again, and all that hang on it.

    The other steps keep their results. Effects of the steps are repeated, not taken back. A new
    payload must fit the handler's model, so TASKS_APP_IMPORTS must name it.
    """
    given = None if payload is None else json_object(payload)
    if given is not None:
        load_modules()
    with transaction() as connection:
        if dry_run:
            found = flow_rows.get_flow(connection, flow_id)
            if found is None:
                output.refuse(f"There is no flow {flow_id}. Run: tasks-app flows list")
            again = [each.name for each in steps_from(found, step)]
        else:
            again = rerun_flow(connection, flow_id, step, given, by=caller(), why=why)
    told = f"{count(len(again), 'step')} {'would' if dry_run else 'will'} run again"
    told = f"{told}: {', '.join(again)}.{' Nothing was changed.' if dry_run else ''}"
    output.print_answer(told, {"steps": again, "changed": not dry_run}, json_=json_)


@flows.command()
@click.argument("flow_id", type=int)
@click.option("--dry-run", is_flag=True, help="Only show what would be undone; change nothing.")
@click.option("--why", default="", metavar="TEXT", help="Why; audit and trail show it.")
@output.json_option
def undo(flow_id: int, *, dry_run: bool, why: str, json_: bool) -> None:
    """Cancel what has not ended, and undo what has succeeded.

    Those that needed a step are undone before it, by its undo=. Steps without one stay as they are.
    """
    with transaction() as connection:
        found = flow_rows.get_flow(connection, flow_id)
        if found is None:
            output.refuse(f"There is no flow {flow_id}. Run: tasks-app flows list")
        if dry_run:
            steps = [each.name for each in would_undo(connection, found)]
        else:
            steps = undo_flow(connection, flow_id, by=caller(), why=why)
    told = f"{count(len(steps), 'step')} {'would' if dry_run else 'will'} be undone"
    told = f"{told}{': ' if steps else ''}{', '.join(steps)}."
    told = f"{told}{' Nothing was changed.' if dry_run else ''}"
    if again := is_undone(found.steps):
        told = "It was undone before; nothing was changed."
    output.print_answer(told, {"steps": steps, "changed": not (dry_run or again)}, json_=json_)


add_commands(flows, task_actions)


@click.group()
def events() -> None:
    """Send events, approvals for example, that tasks wait for."""


@events.command("list")
@output.most_option(20)
@click.option("--waiting", is_flag=True, help="Only those that tasks wait for.")
@output.json_option
def list_events(most: int, *, waiting: bool, json_: bool) -> None:
    """List events that tasks wait for, then those that were sent."""
    with transaction() as connection:
        found = event_rows.find(connection, most, waiting=waiting)
        now = database_now(connection)
    columns = ("key", "waiting", "since", "sent", "by", "why")
    output.print_list(found, columns, partial(_event_line, now), json_=json_)


def _event_line(now: datetime, e: StoredEvent) -> tuple[Any, ...]:
    since, sent = (output.format_instant(at, now) for at in (e.since, e.sent_at))
    return e.key, e.waiting or None, since, sent, e.by, e.why


add_commands(events, task_actions)


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
