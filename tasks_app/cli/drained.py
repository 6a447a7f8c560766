"""What ``work --drain`` says at its end: what ran, what is due still, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from tasks_app.cli import output
from tasks_app.cli.queues import standing
from tasks_app.domain.explain.words import count
from tasks_app.domain.tasks.states import State
from tasks_app.pool.operations.left_due import Left, left
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api.queues import list_queues

_UNKNOWN = "nobody knows why"
_WORDS = {State.PENDING: "to run again"}


def find_left(
    connection: Connection, queues: Sequence[str], since: datetime
) -> list[dict[str, Any]]:
    """Return what is due of these queues although nothing can be done, with the reason."""
    still = {queue.queue: standing(queue) for queue in list_queues(connection) if not queue.runs}

    def why(each: Left) -> str:
        stands = still.get(each.queue) or still.get(EVERY_QUEUE)
        said = f"the queue is {stands}" if stands else each.parked or _UNKNOWN
        return said.rstrip(".")

    return [{**asdict(each), "why": why(each)} for each in left(connection, queues, since)]


def tell(ran: Mapping[State, int], left_: Sequence[Mapping[str, Any]], *, json_: bool) -> None:
    """Print counts of runs by the state that they led to, and what is left."""
    ends = ", ".join(f"{n} {_WORDS.get(s, s.lower())}" for s, n in sorted(ran.items()))
    words = [f"{count(sum(ran.values()), 'run')} ended: {ends}." if ran else "Nothing ran."]
    if left_:
        words.append(f"{count(sum(each['number'] for each in left_), 'due task')} left:")
    words += [
        f"  {each['number']} {each['name']} in {each['queue']}: {each['why']}. "
        f"More: tasks-app explain {each['first']}"
        for each in left_
    ]
    output.answer("\n".join(words), {"ran": ran, "left": left_}, json_=json_)
