"""``list``, ``show``, ``stats``, ``explain``: look at tasks."""

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
from tasks_app.domain.errors import NO
from tasks_app.domain.explain.explanation import Explanation, why_last_attempt
from tasks_app.domain.finding import Finding
from tasks_app.domain.groups import GroupProgress
from tasks_app.domain.tasks.records import Attempt, Task
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.monitor.pages.task import concealed_sources, of_task, sources_of
from tasks_app.monitor.pages.tasks import unkept_of
from tasks_app.monitor.pages.timeline import Moment, timeline
from tasks_app.pool.flow_control.queue_settings import paused
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

_COLUMNS = ("at", "what", "state", "attempt", "by", "due again")


def tell_trail(task_id: int, *, json_: bool) -> None:
    """Print a line for each thing that happened, oldest first."""
    with transaction() as connection:
        task = browse.get(connection, task_id)
        if task is None:
            refuse_unknown(connection, task_id)
        sources = sources_of(connection, task, of_task(connection, task.pool, task_id))
        moments = timeline(concealed_sources(sources))
    if json_:
        output.print_json(moments)
        return
    whys = [": ".join(word for word in (each.kind, each.message) if word) for each in moments]
    output.echo(_COLUMNS, list(map(_trail_line, moments)), whys, remark="why", cut=("what", "by"))


def refuse_unknown(
    connection: Connection, task_id: int, awaited: GroupProgress | None = None
) -> NoReturn:
    """Say that no pool has the task, and why that may be; ``awaited`` will call it."""
    it = "" if awaited is None else f", it is the callback of group {awaited.id}"
    look = "list" if awaited is None else f"groups show {awaited.id}"
    gone = unkept(connection)
    words = f" {gone.words}" if gone else ""
    output.refuse(f"There is no task {task_id}{it}.{words} Run: tasks-app {look}")


def _trail_line(moment: Moment) -> list[str]:
    again = "" if moment.due_at is None else distance_in_words(moment.due_at, moment.at)
    facts = (moment.at, moment.what, moment.state, moment.attempt, moment.by, again)
    return list(map(output.cell, facts))


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
@click.option("--sub-status", help="Only those of which their handler said this.")
@click.option("--before", type=int, help="Only ids below this one.")
@click.option(
    "--most", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many."
)
@output.as_wide
@output.as_json
def list_(*, wide: bool, json_: bool, **filters: Any) -> None:
    """List tasks, newest first, with their last error.

    A task that waits or runs shows the error of its last attempt.
    """
    asked = ", ".join(
        f"--{option.replace('_', '-')}{'' if value is True else f' {value}'}"
        for option, value in filters.items()
        if value is not None and option != "most"
    )
    given = filters["fingerprint"]
    filters["fingerprint"] = None if given is None else fingerprint_digits(given)
    with transaction() as connection:
        tasks, now = browse.find(connection, **filters), database_now(connection)
        going = [task.id for task in tasks if task.pool == Pool.PENDING and task.attempt]
        causes = browse.last_causes(connection, going)
        gone = unkept_of(connection, filters)
        stopped = {each.queue for each in paused(connection)}
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
        output.say(f"There is no task{asked and f' of {asked}'}. What there is: tasks-app stats")
        return
    remarks = [_remark(task, causes.get(task.id), stopped) for task in tasks]
    more = f"\nOlder ones: --before {tasks[-1].id}" if len(tasks) == filters["most"] else ""
    if wide:
        lines = [[output.cell(getattr(task, name)) for name in _WIDE] for task in tasks]
        click.echo(
            "\n".join(output.lay_out(_WIDE, lines, remarks, remark="remark", most=None)) + more
        )
        return
    click.echo(
        "\n".join(
            output.lay_out(
                ("id", "state", "when", "failures", "name", "queue", "biz_key"),
                [_line(task, now) for task in tasks],
                remarks,
                remark="remark",
                most=output.width(),
                cut=("name", "queue", "biz_key"),
            )
        )
        + more
    )


_WIDE = (
    *("id", "pool", "state", "name", "queue", "priority", "biz_key", "unique_key", "attempt"),
    *("failures", "max_attempts", "crashes", "created_at", "due_at", "started_at", "finished_at"),
    *("enabled", "held", "expires_at", "cancel_requested_at", "owner", "lease_until", "run_ms"),
    *("sub_status", "updated_at"),
)


def _line(task: Task, now: datetime) -> list[str]:
    charged = f"{task.failures} of {task.max_attempts}" if task.max_attempts else str(task.failures)
    return [
        *(str(task.id), str(task.state), _when(task, now), charged),
        *(task.name, task.queue, task.biz_key or ""),
    ]


def _when(task: Task, now: datetime) -> str:
    if task.state is State.RUNNING:
        return f"began {output.age(task.started_at, now)}"
    if task.held:
        return "held"
    if task.state is State.PENDING and not task.enabled:
        return "disabled"
    if task.state is State.PENDING:
        return f"due {output.age(task.due_at, now)}"
    return output.age(task.finished_at, now)


def _remark(task: Task, last_error: str | None, stopped: set[str]) -> str:
    waits = task.state is State.PENDING and stopped & {task.queue, EVERY_QUEUE}
    paused_ = "its queue is paused" if waits else None
    said = (task.sub_status, task.error, task.parked, paused_, last_error)
    return "; ".join(each for each in said if each)


@click.command()
@click.argument("task_id", type=int)
@click.option("--trail", is_flag=True, help="Show all that happened to it, in order.")
@click.option(
    "--decrypt", is_flag=True, help="Show what is encrypted, by the keys of this process."
)
@output.as_json
def show(task_id: int, *, trail: bool, decrypt: bool, json_: bool) -> None:
    """Show one task of any pool, with its failed attempts.

    With --trail: each thing that is known to have happened to it, when, by whom
    and why. TASKS_APP_TRANSITIONS=all leaves nothing out.
    """
    if trail:
        tell_trail(task_id, json_=json_)
        return
    with transaction() as connection:
        task = browse.get(connection, task_id)
        attempts = browse.attempts(connection, task_id)
        kept = _kept(connection, task)
        groups = groups_of(connection, task_id, exists=task is not None)
        if task is None:
            refuse_unknown(connection, task_id, groups.callback_of)
    task, attempts = _as_asked(task, attempts, decrypt=decrypt)
    last = attempts[-1] if attempts else None
    why = why_last_attempt(task, last) if task.state is State.FAILED else None
    if json_:
        found = None if kept is None else kept._asdict()
        of = groups._asdict()
        output.print_json(
            {"task": task, "attempts": attempts, "progress": found, "why_last": why, **of}
        )
        return
    shown = {field.name: getattr(task, field.name) for field in fields(task)}
    output.print_fields({**shown, "held": task.held or None}.items())
    output.print_fields([("not tried again", why)])
    output.print_fields(
        (name, f"{each.id}, {_stands(each)}")
        for name, each in groups._asdict().items()
        if each is not None
    )
    if kept is not None:
        done = None if kept.fraction is None else f"{kept.fraction:.0%} {kept.note or ''}".strip()
        output.print_fields(
            [("progress", done), ("checkpoint", kept.checkpoint), ("committed_at", kept.at)]
        )
    for attempt in attempts:
        click.echo(
            f"\nattempt {attempt.attempt} at {output.cell(attempt.ended_at)}: "
            f"{attempt.event}, {output.cell(attempt.kind)}: {output.cell(attempt.message)}"
        )
        if attempt.traceback:
            click.echo(output.cell(attempt.traceback.rstrip()))


def _kept(connection: Connection, task: Task | None) -> run_records.SavedProgress | None:
    found = None if task is None else run_records.read_checkpoint(connection, task.id)
    if task is None or found is None:
        return None
    return found._replace(checkpoint=masks().value(task.name, found.checkpoint))


def _as_asked(task: Task, attempts: list[Attempt], *, decrypt: bool) -> tuple[Task, list[Attempt]]:
    """Return what is to be shown of encrypted values."""
    if decrypt:
        if not encryption().has_key():
            output.refuse("No key is configured here. Set TASKS_APP_ENCRYPTION_KEYS.")
        task, attempts = opened_task(task), opened_attempts(attempts, task.name)
        if is_encrypted(task, attempts):
            click.echo("Not all can be decrypted by the keys of this process.", err=True)
    return concealed_task(task), concealed_attempts(attempts, task)


@click.command()
@output.as_json
def stats(*, json_: bool) -> None:
    """Count tasks by name, queue and state."""
    with transaction() as connection:
        counts = browse.stats(connection)
        pauses = paused(connection)
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


def _stands(group: GroupProgress) -> str:
    outcome = "goes on" if group.outcome is None else str(group.outcome)
    return f"{group.left} of {group.total} have not ended ({outcome})"


@click.command()
@click.argument("task_id", type=int)
@output.as_json
def explain(task_id: int, *, json_: bool) -> None:
    """Say why a task does not run, and what to do.

    Of a task that is over it says what became of it. It changes nothing, and costs next to nothing
    in a pool of any size. Exit 1: there is no such task.
    """
    with transaction() as connection:
        explanation = explain_task(connection, task_id, settings=settings())
    here = tuple(map(output.found_here, explanation.findings))
    explanation = replace(explanation, findings=here)
    if json_:
        output.print_json(explanation)
    else:
        _print(explanation)
    sys.exit(0 if explanation.known else NO)


def _print(explanation: Explanation) -> None:
    first, *others = explanation.findings
    click.echo(_sentence(first))
    click.echo(output.cell(first.advice))
    for other in others:
        click.echo(f"\nAlso: {_sentence(other)}\n{output.cell(other.advice)}")
    if explanation.facts:
        click.echo()
    output.print_fields(
        (name, _shown(value, explanation.at)) for name, value in explanation.facts.items()
    )


def _sentence(finding: Finding) -> str:
    fact = output.cell(finding.fact)
    return fact if fact.endswith((".", "!", "?", "…")) else f"{fact}."


def _shown(value: Any, now: datetime) -> Any:
    return (
        f"{to_the_second(value)}  {distance_in_words(value, now)}"
        if isinstance(value, datetime)
        else value
    )
