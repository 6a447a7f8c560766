"""A dispatcher with a broker in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.dispatcher import IN_HAND_S, Dispatcher
from tests.clock import Clock
from tests.runtime.bench import Bench
from tests.runtime.memory import Memory


class Scene:
    """A dispatcher with its broker, and workers that are heartbeat rows."""

    def __init__(
        self,
        bench: Bench,
        memory: Memory,
        clock: Callable[[], float] | None = None,
        **settings: Any,
    ) -> None:
        self.clock = Clock()
        self.bench = bench
        self.memory = memory
        self.database = Database(bench.url)
        bench.at_end(self.database.dispose)
        self.settings = bench.settings(**settings)
        self.dispatcher = Dispatcher(
            self.settings, self.database, memory, clock=clock or self.clock
        )

    def worker(
        self,
        *names: str,
        queue: str = "default",
        children: int = 1,
        threads: int = 1,
        now: datetime | None = None,
    ) -> None:
        with self.bench.engine.begin() as connection:
            for number in range(children):
                heartbeats.write_heartbeat(
                    connection, owner=f"{queue} {number} {names}", node="n", queues=[queue],
                    handlers=names or ("t",), threads=threads, now=now,
                )  # fmt: skip

    def finish(self) -> list[int]:
        """Let all messages be over; return what they held."""
        self.clock.now += IN_HAND_S
        return self.memory.take()
