"""Duties: what one process does for all, besides publishing due tasks.

A leader does them for a pool with a broker, each worker for one without.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.states import State
from tasks_app.pool.dispatch.idle_check import IdleCheck
from tasks_app.runtime.alerts.watcher import Watcher
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl, WakeResult
from tasks_app.runtime.flow_control.breakers import Breakers
from tasks_app.runtime.flow_control.load_gate import LoadGates
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.leader.rescuer import Rescuer
from tasks_app.runtime.leader.sweeper import Sweeper
from tasks_app.runtime.schedules.scheduler import Scheduler
from tasks_app.runtime.statistics.count_keeper import CountKeeper


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of a look at gates, breakers and schedules."""

    seen: IdleCheck | None
    """The idle check that it relied on; None: there was none, or it has let tasks go since."""
    next_s: float | None
    """Until a gate or a schedule is to be looked at; None: there is none."""
    woken: int
    """Tasks that gates let pass."""


class Duties:
    """Any number of processes may do them at once without harm."""

    def __init__(self, settings: Settings, database: Database, holder: str) -> None:
        self.rescuer = Rescuer(settings, database)
        self._sweeper = Sweeper(database)
        self._maintainer = Maintainer(database, holder, settings=settings)
        self._count_keeper = CountKeeper(settings, database, holder)
        self._watcher = Watcher(settings, database, holder)
        self._scheduler = Scheduler(database)
        self._admission = AdmissionControl(database)
        self._load_gates = LoadGates(database)
        self._breakers = Breakers(database)

    def look(self, seen: IdleCheck | None = None) -> Looked:
        """Look at gates and breakers, and fire schedules; after an idle check only what it saw.

        The first look starts the watcher: from then on it does not depend on those that follow.
        """
        self._watcher.start()
        if seen is None or seen.gates:
            self._load_gates.look()
        if (seen is None or seen.breakers) and self._breakers.look():
            seen = None
        fires_s, look = self._fire(seen), self._look_at_gates(seen)
        instants = [at_s for at_s in (fires_s, look.next_s) if at_s is not None]
        return Looked(seen, min(instants, default=None), look.woken)

    def rescue_and_sweep(self) -> bool:
        """Take back what vanished workers held, and clear the pool of what is barred or expired.

        Returns whether something taken back runs again.
        """
        rescued = self.rescuer.run_once()
        self._sweeper.run_once()
        return State.PENDING in rescued.values()

    def maintain(self) -> None:
        """Maintain, and add counters up, if it is time."""
        self._maintainer.run_if_due()
        self._count_keeper.run_if_due()

    def stop(self) -> None:
        """End what goes on beside the passes."""
        self._watcher.stop()

    def _fire(self, seen: IdleCheck | None) -> float | None:
        next_s = self._scheduler.next_in_s() if seen is None else seen.next_fire_s
        if next_s is None or next_s > 0:
            return next_s
        self._scheduler.run_once()
        return self._scheduler.next_in_s()

    def _look_at_gates(self, seen: IdleCheck | None) -> WakeResult:
        if seen is not None and (seen.next_look_s is None or seen.next_look_s > 0):
            return WakeResult(seen.next_look_s)
        return self._admission.look()
