"""``show --trail``: all that is known to have happened to a task."""

from __future__ import annotations

from tasks_app.cli import output
from tasks_app.cli.database import transaction
from tasks_app.monitor.pages.task import concealed_sources, sources_of
from tasks_app.monitor.pages.timeline import Moment, timeline
from tasks_app.pool.pages.schedules import of_task
from tasks_app.pool.tasks import browse

_COLUMNS = ("at", "what", "state", "attempt", "by", "due again", "why")


def tell_trail(task_id: int, *, json_: bool) -> None:
    """Print a line for each thing that happened, oldest first."""
    with transaction() as connection:
        task = browse.get(connection, task_id)
        if task is None:
            output.refuse(f"There is no task {task_id}. Run: tasks-app list")
        sources = sources_of(connection, task, of_task(connection, task.pool, task_id))
        moments = timeline(concealed_sources(sources))
    output.print_list(moments, _COLUMNS, _line, json_=json_)


def _line(moment: Moment) -> tuple[object, ...]:
    why = ": ".join(word for word in (moment.kind, moment.message) if word)
    return (
        *(moment.at, moment.what, moment.state, moment.attempt),
        *(moment.by, moment.due_at, why or None),
    )
