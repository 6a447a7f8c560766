"""The leader: publishes due tasks, and has the duties that one process has for all."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import PublishError, RefusedError
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.states import State
from tasks_app.pool.dispatch.leader_lease import SCAN, Rank
from tasks_app.pool.dispatch.scan import IdleCheck, check_idle
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.runtime.alerts.watcher import Watcher
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl, WakeResult
from tasks_app.runtime.flow_control.breakers import Breakers, LoadGates
from tasks_app.runtime.health_files import DB, Liveness
from tasks_app.runtime.hint_sender import Publisher
from tasks_app.runtime.leader.dispatcher import AHEAD, Dispatcher
from tasks_app.runtime.leader.leadership import TTL, Leadership
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.leader.rescuer import Rescuer, Sweeper
from tasks_app.runtime.scan import ScanResult
from tasks_app.runtime.schedules.scheduler import Scheduler
from tasks_app.runtime.statistics import CountKeeper

log = quiet_logger(__name__)


class Leader:
    """One candidate for the lease of the scan, and what it does when it leads."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        publisher: Publisher,
        holder: str,
        *,
        rank: Rank = Rank.STANDBY,
        token: UUID | None = None,
        ttl: timedelta = TTL,
    ) -> None:
        self.database = database
        self.lead = Leadership(database, SCAN, holder, rank=rank, token=token, ttl=ttl)
        self._settings = settings
        LOG.level = Logged(settings.transitions)
        self._dispatcher = Dispatcher(settings, database, publisher)
        self.duties = Duties(settings, database, holder)
        self._last = ScanResult()
        self._whole_at = 0.0
        self._refused = False
        """The broker did not take messages from the last leader."""
        self._liveness = Liveness(DB, good_for_s=settings.healthy_for.total_seconds())

    def hold(self) -> bool:
        """Lead, if nobody of our rank or above does.

        If nobody scanned for longer than a renewal interval, the database was perhaps away. Then
        workers have one renewal interval before any rescue.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        led = self.lead.held is not None
        self.lead.hold()
        self._liveness.beat()
        if self.lead.held is not None and not led:
            if self.lead.held.refused_since:
                self._refused = True
                self._dispatcher.doubt()
            idle = self.lead.held.idle
            if idle is None or idle > self._settings.renew_every:
                self.duties.rescuer.let_renew()
        return self.lead.held is not None

    def probe(self) -> None:
        """Pass if we could publish, or if nobody could. A process that alone cannot must not lead.

        Raises:
            PublishError: the last message did not go out, and the broker still does not answer.
        """
        with suppress(RefusedError):
            self._dispatcher.probe()

    def scan(self) -> ScanResult:
        """Rescue what is over, sweep, maintain if it is time, fire schedules, publish what is due.

        While there is a backlog, passes that only publish come between; an idle pool costs
        one read. What needs no broker is done, and written down as done, whatever the broker says.

        Raises:
            PublishError: the broker did not take a message from us; another process may lead.
        """
        if self._last.more and time.monotonic() < self._whole_at:
            self._give_up(self._publish(fill_up=True))
            self._last = _awake_for(self._last, max(0.0, self._whole_at - time.monotonic()))
            return self._last
        self._whole_at = time.monotonic() + self._settings.scan_interval.total_seconds()
        looked = self.duties.look(self._check_idle())
        trouble = None
        if not looked.woken and not self._refused and self._is_quiet(looked.seen):
            self._last = ScanResult()
        else:
            self.duties.rescue_and_sweep()
            trouble = self._publish()
        self._last = _awake_for(self._last, looked.next_s)
        self.duties.maintain()
        self.lead.done(self._last.depths)
        self._give_up(trouble)
        return self._last

    def _publish(self, *, fill_up: bool = False) -> PublishError | None:
        """Publish what is due; return the broker's refusal, if any."""
        try:
            self._last = self._dispatcher.run_once(fill_up=fill_up)
        except PublishError as error:
            self._last = ScanResult(published=1)
            return error
        if self._refused:
            self.lead.taken()
            self._refused = False
            log.warning("the broker takes messages again")
        return None

    def _give_up(self, trouble: PublishError | None) -> None:
        """Let another process lead whose messages may be taken.

        A broker that says so itself takes nobody's: then we go on leading, with all the rest.
        """
        if trouble is None:
            return
        since = self.lead.refused(str(trouble).partition(". ")[0])
        if not self._refused:
            log.warning("nothing is published since %s: %s", since, trouble)
        self._refused = True
        if not isinstance(trouble, RefusedError):
            self.lead.release()
            raise trouble

    def _check_idle(self) -> IdleCheck | None:
        """Do the idle check, if there was nothing to do the last time."""
        if self._last.did_something:
            return None
        asked_at = time.monotonic()
        with self.database.single() as connection:
            seen = check_idle(connection)
        self.duties.rescuer.heard(seen.at_s, asked_at)
        return seen

    def _is_quiet(self, seen: IdleCheck | None) -> bool:
        """Whether the idle check found nothing, and no schedule has fired since."""
        if seen is None:
            return False
        fired = seen.next_fire_s is not None and seen.next_fire_s <= 0
        return not fired and seen.is_quiet(self._settings.scan_interval + AHEAD)

    def maintain(self) -> None:
        """Maintain, if it is time."""
        self.duties.maintain()


def _awake_for(scanned: ScanResult, next_s: float | None) -> ScanResult:
    """Return the result with this instant among those to wake up for."""
    if next_s is None or (scanned.next_due_s is not None and scanned.next_due_s <= next_s):
        return scanned
    return replace(scanned, next_due_s=next_s)


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
