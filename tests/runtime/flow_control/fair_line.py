"""A fair queue that is filled and drained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import uuid4

from sqlalchemy import Engine

from tasks_app import NewTask, create_tasks
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_group
from tasks_app.runtime.api.limits import share_queue
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.hint_sender import Message
from tasks_app.runtime.leader.dispatcher import Dispatcher
from tests.factory import claimer, ending
from tests.runtime.bench import Bench

QUEUE = "default"


class Line:
    """A broker's queue, and one worker that takes tasks out of it in their order."""

    def __init__(self, engine: Engine, bench: Bench, task_s: float = 0.0) -> None:
        self._engine = engine
        self._task_s = task_s
        self._database = Database(bench.url)
        settings = bench.settings()
        self._dispatcher = Dispatcher(settings, self._database, self)
        self._messages: list[Message] = []
        self.longest = 0
        self.ran: list[int] = []

    def publish(self, messages: Sequence[Message]) -> dict:
        self._messages += messages
        return {}

    def probe(self) -> None:
        pass

    def depths(self, queues: Sequence[str]) -> dict[str, int]:
        return {queue: sum(each.queue == queue for each in self._messages) for queue in queues}

    def turn(self) -> list[int]:
        """One pass of the scan, and one message of the worker; return what ran."""
        with self._engine.begin() as connection:
            heartbeats.write_heartbeat(
                connection, owner="w1", node="n", queues=[QUEUE], handlers=["t"]
            )
        self._dispatcher.run_once()
        self.longest = max(self.longest, sum(len(each.ids) for each in self._messages))
        if not self._messages:
            return []
        message = self._messages.pop(0)
        with self._engine.begin() as connection:
            taken = claim(connection, message.ids, claimer(), uuid4())
            settle_group(connection, [ending(task) for task in taken])
        time.sleep(self._task_s * len(taken))
        ran = [task.task_id for task in taken]
        self.ran += ran
        return ran

    def close(self) -> None:
        self._database.dispose()


def fill(engine: Engine, **keys: int) -> dict[int, str]:
    """Create so many tasks of each key; return whose is which."""
    whose: dict[int, str] = {}
    with engine.begin() as connection:
        for key, number in keys.items():
            ids = create_tasks(connection, [NewTask("t", None, {"fair_key": key})] * number)
            whose |= dict.fromkeys(map(int, ids), key)
    return whose


def share(engine: Engine, **weights: float) -> None:
    with engine.begin() as connection:
        share_queue(connection, QUEUE, weights)
