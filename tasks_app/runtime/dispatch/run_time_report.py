"""The run-time report: how long tasks take, as a child learned it, written for the dispatcher."""

from __future__ import annotations

import time
from collections.abc import Callable

from tasks_app.pool.dispatch.run_times import learn
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.dispatch.message_sizing import MESSAGE_S
from tasks_app.runtime.handlers.registry import Registry

EVERY_S = 10.0
NEWS = 1.2
"""What changed by less than this factor is not worth a write."""
GREAT_NEWS = 2.0
"""What changed by more is written soon: the first run of a name often takes long."""
NEVER_HEARD = float("inf")
"""A name that nobody has run is told at once."""
PAUSE_S = 0.3
"""Between two writes; on a busy machine the run times of fast tasks vary much."""
GREATEST_NEWS = 10.0
"""What changed by more does not wait for it: a first run that had to connect, say."""
FASTEST_S = 0.0002
"""Faster makes no difference: the largest messages of such tasks are still short."""


class RunTimeReport:
    """A duty of the housekeeper; it costs a look at a few numbers while nothing changes."""

    def __init__(
        self,
        database: Database,
        snapshot: Callable[[], dict[str, float]],
        registry: Registry,
        *,
        threads: int = 1,
        async_concurrency: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._database = database
        self._snapshot = snapshot
        self._registry = registry
        self._threads = threads
        self._async_concurrency = async_concurrency
        self._told: dict[str, float] = {}
        self._look_at = self._told_at = 0.0

    def tell(self) -> None:
        """Write what is news.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: it was not written, and is still news.
        """
        now = self._clock()
        least = NEWS if now >= self._look_at else GREAT_NEWS
        if now < self._told_at + PAUSE_S:
            least = GREATEST_NEWS
        news = {
            name: seconds
            for name, run_s in self._snapshot().items()
            if _factor(seconds := self._share_s(name, run_s), self._told.get(name)) >= least
        }
        if least == NEWS:
            self._look_at = now + EVERY_S
        if news:
            with self._database.begin() as connection:
                learn(connection, news)
            self._told |= news
            self._told_at = now

    def _share_s(self, name: str, run_s: float) -> float:
        """Return how much of the child's time one task takes up, with others beside it.

        A message is to hold as many slow tasks as the child can run at once.
        """
        spec = self._registry.get(name)
        at_once = self._async_concurrency if spec and spec.is_async else self._threads
        return max(FASTEST_S, run_s if at_once == 1 else min(run_s, MESSAGE_S) / at_once)


def _factor(seconds: float, told: float | None) -> float:
    return NEVER_HEARD if told is None else max(seconds / told, told / seconds)
