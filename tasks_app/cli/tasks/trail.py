"""``show --trail``: all that is known to have happened to a task."""

from __future__ import annotations

from typing import NoReturn

from sqlalchemy import Connection

from tasks_app.cli import listing, output
from tasks_app.cli.database import transaction
from tasks_app.domain.coordination.groups import GroupProgress
from tasks_app.domain.explain.words import distance
from tasks_app.monitor.pages.task import concealed_sources, sources_of
from tasks_app.monitor.pages.timeline import Moment, timeline
from tasks_app.pool.pages.schedules import of_task
from tasks_app.pool.statistics.unkept import unkept
from tasks_app.pool.tasks import browse

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
    listing.echo(_COLUMNS, list(map(_line, moments)), whys, remark="why", cut=("what", "by"))


def refuse_unknown(
    connection: Connection, task_id: int, awaited: GroupProgress | None = None
) -> NoReturn:
    """Say that no pool has the task, and why that may be; ``awaited`` will call it."""
    it = "" if awaited is None else f", it is the callback of group {awaited.id}"
    look = "list" if awaited is None else f"groups show {awaited.id}"
    gone = unkept(connection)
    words = f" {gone.words}" if gone else ""
    output.refuse(f"There is no task {task_id}{it}.{words} Run: tasks-app {look}")


def _line(moment: Moment) -> list[str]:
    again = "" if moment.due_at is None else distance(moment.due_at, moment.at)
    facts = (moment.at, moment.what, moment.state, moment.attempt, moment.by, again)
    return list(map(output.cell, facts))
