"""What ``work --drain`` says at its end: what ran, what is still due, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from tasks_app.cli import output
from tasks_app.domain.errors import AWAY
from tasks_app.domain.explain.queues import standing
from tasks_app.domain.explain.words import count
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.connection.row_by_row import Refusal
from tasks_app.pool.operations.left_due import Left, left
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api.queues import list_queues
from tasks_app.runtime.worker.supervisor import WorkerEnd

_UNKNOWN = "nobody knows why"
_STOPPED = "the drain was stopped before it came to them"
_CROWDED = "the processes got no connection, since the database has no more to give"
_WORDS = {State.PENDING: "to run again"}


def find_left(
    connection: Connection, queues: Sequence[str], since: datetime, ended: WorkerEnd
) -> list[dict[str, Any]]:
    """Return the due tasks of these queues that nobody can run, by name, with the reason.

    Of a drain that came to its end, those that were due when it began, at ``since``.
    """
    unread = _CROWDED if ended.status == AWAY else _UNKNOWN
    if ended.stopped_by is not None:
        unread = _STOPPED
    if unread != _UNKNOWN:
        since = instant(connection)
    still = {queue.queue: standing(queue) for queue in list_queues(connection) if not queue.runs}

    def why(each: Left) -> str:
        stands = still.get(each.queue) or still.get(EVERY_QUEUE)
        said = f"the queue is {stands}" if stands else each.parked or unread
        return said.rstrip(".")

    return [{**asdict(each), "why": why(each)} for each in left(connection, queues, since)]


def tell(
    ran: Mapping[State, int],
    left_: Sequence[Mapping[str, Any]],
    refused: Sequence[Refusal],
    *,
    json_: bool,
    stopped_by: str | None = None,
) -> None:
    """Print how many runs led to each state, what stopped it, and what is left or was refused."""
    ends = ", ".join(f"{n} {_WORDS.get(s, s.lower())}" for s, n in sorted(ran.items()))
    words = [f"{count(sum(ran.values()), 'run')} ended: {ends}." if ran else "Nothing ran."]
    if stopped_by is not None:
        words.append(f"It was stopped by {stopped_by}.")
    if left_:
        words.append(f"{count(sum(each['number'] for each in left_), 'due task')} left:")
    words += [
        f"  {each['number']} {each['name']} in {each['queue']}: {each['why']}. "
        f"More: tasks-app explain {each['first']}"
        for each in left_
    ]
    words += [f"{each.what} refused: {each.rows} ({each.why})." for each in refused]
    rows = [{"what": each.what, "rows": each.rows, "why": each.why} for each in refused]
    found = {"ran": ran, "left": left_, "refused": rows, "stopped_by": stopped_by}
    output.answer("\n".join(words), found, json_=json_)
