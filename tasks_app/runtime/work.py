"""A worker without a broker: the smallest deployment, and the tests' fast lane.

One reader claims batches by token and hands them over to runner threads on the desk, which is
bounded; when it is full the reader runs tasks itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.settings import Settings
from tasks_app.pool.scan import due
from tasks_app.pool.upcoming import next_due_in
from tasks_app.runtime.child import Child
from tasks_app.runtime.desk import Running
from tasks_app.runtime.dispatcher import tidy
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.maintainer import Maintainer
from tasks_app.runtime.rescuer import Rescuer

log = quiet_logger(__name__)

TIDY_AT_MOST = 1_000
SHORTEST_NAP_S = 0.005
"""Instants that lie closer together are served together."""


class Work:
    """The reader and its runners."""

    def __init__(
        self,
        settings: Settings,
        child: Child,
        queues: tuple[str, ...],
        names: set[str],
        concurrency: int = 1,
    ) -> None:
        self._settings = settings
        self._child = child
        self._desk = child.desk
        self._queues = queues
        self._names = names
        self._rescuer = Rescuer(settings, child.database)
        self._maintainer = Maintainer(child.database, child.identity.owner)
        self._tidy_at = 0.0
        self._runners = [
            threading.Thread(
                target=self._run_handed_over, name=f"tasks_app runner {n}", daemon=True
            )
            for n in range(1, concurrency)
        ]

    def run(self, *, drain: bool = False) -> None:
        """Work until the desk is stopped; with ``drain``, until nothing is due or running."""
        for runner in self._runners:
            runner.start()
        while not self._desk.stopping.is_set():
            self._every(self._tidy)
            taken = self._claim()
            self._child.executor.run_waiting()
            if taken:
                continue
            if drain and self._drained():
                break
            self._nap()
        self._desk.stop()
        for runner in self._runners:
            runner.join()
        self._child.runner.close()

    def _claim(self) -> int | None:
        """Claim what is due; return how many, or None if the database did not answer."""
        group = self._child.runner.pace.next_group(self._settings.claim_size)
        most = group * (1 + len(self._runners))
        try:
            return self._child.executor.claim_next(self._queues, most)
        except SQLAlchemyError:
            return None

    def _drained(self) -> bool:
        """Nothing on the desk, and a last look, the dead buried, finds nothing due."""
        if not self._desk.empty:
            return False
        self._tidy_at = 0.0
        self._every(self._tidy)
        try:
            return self._child.bury() == 0 and self._claim() == 0
        except SQLAlchemyError:
            return False

    def _nap(self) -> None:
        """Wait for the next row or the next scan, or shortly while runners are still busy."""
        interval = self._settings.scan_interval.total_seconds()
        if not self._desk.empty:
            interval = min(0.02, interval)
        else:
            with suppress(SQLAlchemyError), self._child.database.begin() as connection:
                soon = next_due_in(connection, self._queues, self._settings.scan_interval)
                interval = min(interval, SHORTEST_NAP_S + (soon or interval))
        self._desk.stopping.wait(interval)

    def _run_handed_over(self) -> None:
        """A runner: tasks with a timeout are left to the reader, whose thread can raise it."""
        unlimited: Callable[..., bool] = lambda task: not self._child.runner.has_limit(task)  # noqa: E731
        while not self._desk.stopping.is_set():
            run: Running | None = self._desk.start_next(unlimited)
            if run is not None:
                self._child.runner.run(run)
                continue
            with self._desk.arrived:
                self._desk.arrived.wait(0.5)
        self._child.runner.close()

    def _every(self, duty: Callable[[], None]) -> None:
        try:
            duty()
        except SQLAlchemyError as error:
            log.warning("the database did not answer, again soon: %s", type(error).__name__)

    def _tidy(self) -> None:
        """Rescue, sweep and park once per scan interval; maintain once per hour."""
        now = time.monotonic()
        if now < self._tidy_at:
            return
        self._tidy_at = now + self._settings.scan_interval.total_seconds()
        self._rescuer.run_once()
        swept: list[Notice] = []
        with self._child.database.begin() as connection:
            for queue in self._queues:
                found = due(connection, queue, TIDY_AT_MOST)
                tidy(connection, found, self._names, self._settings, swept)
        HOOKS.tell(swept)
        self._maintainer.run_if_due()
