"""``list``, ``show``, ``stats``, ``explain``: read tasks."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any, NoReturn

import click
from sqlalchemy import Connection

from tasks_app.cli import output
from tasks_app.cli.commands import fingerprint_digits
from tasks_app.cli.database import settings, transaction
from tasks_app.domain.durations import distance_in_words, to_the_second
from tasks_app.domain.errors import EXIT_NO
from tasks_app.domain.explain.explanation import why_last_attempt
from tasks_app.domain.finding import Finding
from tasks_app.domain.groups import GroupProgress
from tasks_app.domain.tasks.records import Task
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.monitor.pages.task import concealed_sources, schedule_name, sources_of
from tasks_app.monitor.pages.tasks import unkept_of
from tasks_app.monitor.pages.timeline import Moment, timeline
from tasks_app.pool.flow_control.queue_settings import find_pauses
from tasks_app.pool.statistics.read import unkept
from tasks_app.pool.tables import EVERY_QUEUE, database_now
from tasks_app.pool.task_groups import groups_of
from tasks_app.pool.tasks import browse, run_records
from tasks_app.runtime.api.tasks import explain_task
from tasks_app.runtime.encryption.encryption import encryption
from tasks_app.runtime.encryption.values import (
    concealed_attempts,
    concealed_task,
    is_encrypted,
    masks,
    opened_attempts,
    opened_task,
)


@click.command("list")
@click.option("--pool", type=click.Choice([str(pool) for pool in Pool]), help="Only this pool.")
@click.option(
    "--state",
    type=click.Choice([str(state) for state in State], case_sensitive=False),
    help="Only this state.",
)
@click.option("--name", help="Only tasks of this name.")
@click.option("--queue", help="Only this queue.")
@click.option("--biz-key", help="Only this business object: order:42.")
@click.option("--group", type=int, metavar="ID", help="Only members of this group.")
@click.option("--fingerprint", help="Only failed tasks with this error, as `errors` lists it.")
@click.option("--held", is_flag=True, default=None, help="Only those that are held.")
@click.option("--sub-status", help="Only those with this sub-status of their handler.")
@click.option("--before", type=int, help="Only ids below this one.")
@output.most_option(20)
@output.wide_option
@output.json_option
def list_(*, wide: bool, json_: bool, **filters: Any) -> None:
    """List tasks, newest first, with their last error.

    A task that waits or runs shows the error of its last attempt.
    """
    selection = ", ".join(
        f"--{option.replace('_', '-')}{'' if value is True else f' {value}'}"
        for option, value in filters.items()
        if value is not None and option != "most"
    )
    given = filters["fingerprint"]
    filters["fingerprint"] = None if given is None else fingerprint_digits(given)
    with transaction() as connection:
        tasks, now = browse.find_tasks(connection, **filters), database_now(connection)
        going = [task.id for task in tasks if task.pool == Pool.PENDING and task.attempt]
        causes = browse.last_causes(connection, going)
        gone = unkept_of(connection, filters)
        stopped = {each.queue for each in find_pauses(connection)}
    causes = {
        task.id: masks().text(task.name, causes[task.id], task.payload)
        for task in tasks
        if causes.get(task.id)
    }
    tasks = [concealed_task(task) for task in tasks]
    if gone is not None:
        click.echo(gone.words, err=True)
    if json_:
        shown = [{**asdict(task), "last_error": causes.get(task.id)} for task in tasks]
        output.print_json(shown)
        return
    if not tasks:
        of = f" of {selection}" if selection else ""
        output.print_text(f"There is no task{of}. To see all: tasks-app stats")
        return
    remarks = [_remark(task, causes.get(task.id), stopped) for task in tasks]
    columns = _WIDE if wide else ("id", "state", "when", "failures", "name", "queue", "biz_key")
    lines = [
        [output.cell(getattr(task, name)) for name in _WIDE] if wide else _line(task, now)
        for task in tasks
    ]
    cut = ("name", "queue", "biz_key")
    output.print_rows(columns, lines, remarks, remark="remark", cut=cut, wide=wide)
    if len(tasks) == filters["most"]:
        click.echo(f"Older ones: --before {tasks[-1].id}")


_WIDE = (
    *("id", "pool", "state", "name", "queue", "priority", "biz_key", "unique_key", "attempt"),
    *("failures", "max_attempts", "crashes", "created_at", "due_at", "started_at", "finished_at"),
    *(
        "enabled",
        "held",
        "waits_for",
        "expires_at",
        "cancel_requested_at",
        "owner",
        "lease_until",
        "run_ms",
    ),
    *("sub_status", "updated_at"),
)


def _line(task: Task, now: datetime) -> list[str]:
    if task.state is State.RUNNING:
        when = f"began {output.format_instant(task.started_at, now)}"
    elif task.held:
        when = "held"
    elif task.waits_for:
        when = "waits for its needs"
    elif task.state is State.PENDING and not task.enabled:
        when = "disabled"
    elif task.state is State.PENDING:
        when = f"due {output.format_instant(task.due_at, now)}"
    else:
        when = output.format_instant(task.finished_at, now)
    failures = f"{task.failures}{f' of {task.max_attempts}' if task.max_attempts else ''}"
    return [
        *(str(task.id), str(task.state), when, failures),
        *(task.name, task.queue, task.biz_key or ""),
    ]


def _remark(task: Task, last_error: str | None, stopped: set[str]) -> str:
    waits = task.state is State.PENDING and stopped & {task.queue, EVERY_QUEUE}
    paused_ = "its queue is paused" if waits else None
    remarks = (task.sub_status, task.error, task.parked, paused_, last_error)
    return "; ".join(each for each in remarks if each)


@click.command()
@click.argument("task_id", type=int)
@click.option("--trail", is_flag=True, help="Show what is recorded of it, in order.")
@click.option(
    "--decrypt", is_flag=True, help="Show what is encrypted, by the keys of this process."
)
@output.json_option
def show(task_id: int, *, trail: bool, decrypt: bool, json_: bool) -> None:
    """Show one task of any pool, with its failed attempts.

    With --trail: all its recorded events, with time, author and reason.
    TASKS_APP_TRANSITIONS=all records every one.
    """
    if trail:
        print_trail(task_id, json_=json_)
        return
    kept = None
    with transaction() as connection:
        task = browse.get(connection, task_id)
        attempts = browse.failed_attempts(connection, task_id)
        groups = groups_of(connection, task_id, exists=task is not None)
        if task is None:
            refuse_unknown(connection, task_id, groups.callback_of)
        steps = run_records.step_names(connection, task.id)
        if progress := run_records.read_checkpoint(connection, task.id):
            kept = progress._replace(checkpoint=masks().value(task.name, progress.checkpoint))
    if decrypt:
        if not encryption().has_key():
            output.refuse("No key is configured here. Set TASKS_APP_ENCRYPTION_KEYS.")
        task, attempts = opened_task(task), opened_attempts(attempts, task.name)
        if is_encrypted(task, attempts):
            click.echo("The keys of this process cannot decrypt everything.", err=True)
    attempts, task = concealed_attempts(attempts, task), concealed_task(task)
    last = attempts[-1] if attempts else None
    why = why_last_attempt(task, last) if task.state is State.FAILED else None
    if json_:
        found = None if kept is None else kept._asdict()
        shown = {"task": task, "attempts": attempts, "progress": found, "steps": steps}
        output.print_json(shown | {"why_last": why} | groups._asdict())
        return
    shown = {field.name: getattr(task, field.name) for field in fields(task)}
    waits_for = task.waits_for and "its needs"
    output.print_fields({**shown, "held": task.held or None, "waits_for": waits_for}.items())
    output.print_fields([("not tried again", why)])
    output.print_fields(
        (name, _group_words(each)) for name, each in groups._asdict().items() if each is not None
    )
    if kept is not None:
        done = None if kept.fraction is None else f"{kept.fraction:.0%} {kept.note or ''}".strip()
        output.print_fields(
            [
                *[("progress", done), ("checkpoint", kept.checkpoint)],
                *[("steps", ", ".join(steps) or None), ("committed_at", kept.at)],
            ]
        )
    for attempt in attempts:
        click.echo(
            f"\nattempt {attempt.attempt} at {output.cell(attempt.ended_at)}: "
            f"{attempt.event}, {output.cell(attempt.kind)}: {output.cell(attempt.message)}"
        )
        if attempt.traceback:
            click.echo(output.cell(attempt.traceback.rstrip()))


def print_trail(task_id: int, *, json_: bool) -> None:
    with transaction() as connection:
        task = browse.get(connection, task_id)
        if task is None:
            refuse_unknown(connection, task_id)
        sources = sources_of(connection, task, schedule_name(connection, task.pool, task_id))
        moments = timeline(concealed_sources(sources))
    if json_:
        output.print_json(moments)
        return
    reasons = [": ".join(word for word in (each.kind, each.message) if word) for each in moments]
    columns = ("at", "what", "state", "attempt", "by", "due again")
    lines = list(map(_trail_line, moments))
    output.print_rows(columns, lines, reasons, remark="why", cut=("what", "by"))


def _trail_line(moment: Moment) -> list[str]:
    again = output.format_instant(moment.due_at, moment.at)
    facts = (moment.at, moment.what, moment.state, moment.attempt, moment.by, again)
    return list(map(output.cell, facts))


def refuse_unknown(
    connection: Connection, task_id: int, awaited: GroupProgress | None = None
) -> NoReturn:
    """Exit because no pool has the task, with a reason if known; ``awaited`` will call it."""
    it = "" if awaited is None else f", it is the callback of group {awaited.id}"
    command = "list" if awaited is None else f"groups show {awaited.id}"
    gone = unkept(connection)
    words = f" {gone.words}" if gone else ""
    output.refuse(f"There is no task {task_id}{it}.{words} Run: tasks-app {command}")


@click.command()
@output.json_option
def stats(*, json_: bool) -> None:
    """Count tasks by name, queue and state."""
    with transaction() as connection:
        counts = browse.count_tasks(connection)
        pauses = find_pauses(connection)
        gone = unkept(connection)
    if gone is not None:
        click.echo(gone.words, err=True)
    if json_:
        output.print_json(list(counts))
        return
    output.print_table(
        ("name", "queue", "state", "tasks", "oldest due"),
        [(c.name, c.queue, c.state, c.number, c.oldest_due_at) for c in counts],
    )
    for stopped in pauses:
        queue = "every queue" if stopped.queue == EVERY_QUEUE else f"queue {stopped.queue}"
        reason = f": {stopped.reason}" if stopped.reason else ""
        until = f" until {output.cell(stopped.resume_at)}" if stopped.resume_at else ""
        click.echo(f"{queue} is paused since {output.cell(stopped.since)}{until}{reason}")


def _group_words(group: GroupProgress) -> str:
    outcome = "goes on" if group.outcome is None else str(group.outcome)
    return f"{group.id}, {group.left} of {group.total} have not ended ({outcome})"


@click.command()
@click.argument("task_id", type=int)
@output.json_option
def explain(task_id: int, *, json_: bool) -> None:
    """Print why a task does not run, and what to do.

    For a finished task it prints the outcome. It changes nothing, and costs next to nothing in a
    pool of any size. Exit 1: there is no such task.
    """
    with transaction() as connection:
        explanation = explain_task(connection, task_id, settings=settings())
    here = tuple(map(output.finding_with_program_name, explanation.findings))
    explanation = replace(explanation, findings=here)
    if json_:
        output.print_json(explanation)
    else:
        first, *others = explanation.findings
        click.echo(f"{_sentence(first)}\n{output.cell(first.advice)}")
        for other in others:
            click.echo(f"\nAlso: {_sentence(other)}\n{output.cell(other.advice)}")
        if explanation.facts:
            click.echo()
        output.print_fields(
            (name, _shown(value, explanation.at)) for name, value in explanation.facts.items()
        )
    sys.exit(0 if explanation.known else EXIT_NO)


def _sentence(finding: Finding) -> str:
    fact = output.cell(finding.fact)
    return fact if fact.endswith((".", "!", "?", "…")) else f"{fact}."


def _shown(value: Any, now: datetime) -> Any:
    return (
        f"{to_the_second(value)}  {distance_in_words(value, now)}"
        if isinstance(value, datetime)
        else value
    )
