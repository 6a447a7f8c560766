"""A worker without a broker: the smallest deployment, and the tests' fast lane.

One reader claims groups straight from the pool; threads and crew take them from the in-flight set,
and the reader, whose thread is the main one, runs tasks, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.dispatch.elsewhere import known_elsewhere
from tasks_app.pool.dispatch.scan import Due, due
from tasks_app.pool.dispatch.upcoming import upcoming
from tasks_app.pool.schedules import fire
from tasks_app.runtime.db.errors import patience_s
from tasks_app.runtime.flow_control.admission import AdmissionControl, Verdict
from tasks_app.runtime.flow_control.breakers import Breakers
from tasks_app.runtime.flow_control.load_gate import LoadGates
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.leader.rescuer import Rescuer
from tasks_app.runtime.leader.sweeper import Sweeper
from tasks_app.runtime.scan.position import ScanPosition
from tasks_app.runtime.scan.triage import tidy
from tasks_app.runtime.schedules.scheduler import Scheduler
from tasks_app.runtime.worker.child import Child

log = quiet_logger(__name__)

TIDY_AT_MOST = 1_000
DRAIN_NAP_S = 0.1
"""Between two looks of a child that waits for its siblings' last tasks."""
SHORTEST_NAP_S = 0.005
"""Instants that lie closer together are served together."""


class StandaloneWorker:
    """The reader and its runners."""

    def __init__(
        self,
        settings: Settings,
        child: Child,
        queues: tuple[str, ...],
        names: set[str],
    ) -> None:
        self._settings = settings
        self._child = child
        self._inflight = child.inflight
        self._queues = queues
        self._names = names
        self._rescuer = Rescuer(settings, child.database)
        self._sweeper = Sweeper(child.database)
        self._maintainer = Maintainer(child.database, child.identity.owner, settings=settings)
        self._scheduler = Scheduler(child.database)
        self._load_gates = LoadGates(child.database)
        self._breakers = Breakers(child.database)
        self._slot = child.slot
        self._claimed_at = 0.0
        self._front = ScanPosition()
        self._admission = AdmissionControl(child.database)

    def run(self, *, drain: bool = False) -> None:
        """Work until the in-flight set is stopped; with ``drain``, until nothing is due or running.

        Who stays rescues nobody before workers could renew: perhaps the database's clock has just
        jumped. A drain has no time for that.
        """
        if not drain:
            self._rescuer.let_renew()
        self._child.threads.start()
        while not self._inflight.over:
            self._every(self._tidy)
            taken = self._claim()
            if taken is None:
                self._inflight.stopping.wait(patience_s())
            self._child.executor.run_waiting(self._child.threads.number if taken else 0)
            if taken:
                continue
            if drain and self._drained():
                break
            self._nap(DRAIN_NAP_S if drain else None)
        self._inflight.stop()
        self._child.await_runs()

    def _claim(self) -> int | None:
        """Claim what is due; return how many, or None if the database did not answer."""
        self._claimed_at = time.monotonic()
        try:
            return self._child.executor.top_up(self._queues)
        except SQLAlchemyError:
            return None

    def _drained(self) -> bool:
        """Nothing in flight, and a last look, the dead reaped, finds nothing due.

        What siblings run may make something due, so nobody leaves before the last is over.
        """
        if not self._inflight.empty or self._child.runs_aside or self._slot.others_run:
            return False
        self._slot.tidy_at = 0.0
        self._every(self._tidy)
        try:
            return self._child.reap() == 0 and not self._child.executor.top_up_whole(self._queues)
        except SQLAlchemyError:
            return False

    def _nap(self, longest_s: float | None = None) -> None:
        """Wait for the next row or the next scan, or shortly while runners are still busy.

        The end of a run ends the nap: its hands are free, and it may have made room for others.
        """
        interval = longest_s or self._settings.scan_interval.total_seconds()
        if not self._inflight.empty:
            interval = min(0.02, interval)
        else:
            with suppress(SQLAlchemyError), self._child.database.begin() as connection:
                since = timedelta(seconds=time.monotonic() - self._claimed_at)
                within = self._settings.scan_interval
                near = upcoming(connection, self._queues, within, since=since)
                interval = min([interval, *(task.due_in_s + SHORTEST_NAP_S for task in near)])
            interval = max(0.0, min(interval, self._slot.tidy_at - time.monotonic()))
        self._inflight.stirred.wait(interval)
        self._inflight.stirred.clear()

    def _every(self, duty: Callable[[], None]) -> None:
        try:
            duty()
        except SQLAlchemyError as error:
            log.warning("the database did not answer, again soon: %s", type(error).__name__)
            self._inflight.stopping.wait(patience_s())

    def _known(self, connection: Connection, found: Due) -> set[str]:
        """Return what some live worker of the queue knows: tasks of others are left to them."""
        if self._names.issuperset(found.names):
            return self._names
        lease = self._settings.lease
        return self._names | known_elsewhere(connection, [found.queue], self._names, lease)

    def _tidy(self) -> None:
        """Rescue, fire, sweep and park once per scan interval; maintain once per hour.

        One child of the worker does it for all of them, whichever comes first. A schedule is fired
        when its instant comes, not at the end of the interval.
        """
        now = time.monotonic()
        if now < self._slot.tidy_at:
            return
        self._slot.tidy_at = now + self._settings.scan_interval.total_seconds()
        self._rescuer.run_once()
        self._sweeper.run_once()
        self._load_gates.look()
        self._breakers.look()
        swept: list[Notice] = []
        verdicts: list[Verdict] = []
        look_s = self._admission.look().next_s
        began, full = time.monotonic(), 0
        within, most = self._front.within(began), dict.fromkeys(self._queues, TIDY_AT_MOST)
        with self._child.database.begin() as connection:
            for found in due(connection, most, within=within):
                full += len(found.ids) == TIDY_AT_MOST
                rows = list(zip(found.ids, found.names, strict=True))
                names = self._known(connection, found)
                ready = tidy(connection, rows, found, names, self._settings, swept)
                gated = [task_id for task_id, _ in ready if task_id in found.gated]
                verdicts.append(self._admission.judge(connection, gated))
            fire_s = fire.next_in_s(connection)
        self._front.was_read(began, within, left=full)
        self._admission.hold(verdicts)
        if fire_s is not None and fire_s <= 0:
            self._scheduler.run_once()
            fire_s = self._scheduler.next_in_s()
        for next_s in (fire_s, look_s):
            if next_s is not None:
                self._slot.tidy_at = min(
                    self._slot.tidy_at, time.monotonic() + max(next_s, SHORTEST_NAP_S)
                )
        HOOKS.tell(swept)
        self._maintainer.run_if_due()
