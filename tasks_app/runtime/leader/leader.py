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
from tasks_app.runtime.flow_control.breakers import advance_breakers
from tasks_app.runtime.flow_control.load_gates import LoadGates
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
        self._refused = False  # the broker took no messages from the last leader, or from us
        self._liveness = Liveness(DB, good_for_s=settings.healthy_for.total_seconds())

    def hold(self) -> bool:
        """Lead, unless a process of our rank or above does.

        If the last scan is longer ago than a renewal interval, the database was perhaps away. Then
        workers have one renewal interval before any rescue.
        """
        led = self.lead.held is not None
        self.lead.hold()
        self._liveness.beat()
        if self.lead.held is not None and not led:
            if self.lead.held.refused_since:
                self._refused = True
                self._dispatcher.probe_first()
            idle = self.lead.held.idle
            if idle is None or idle > self._settings.renew_every:
                self.duties.rescuer.let_renew()
        return self.lead.held is not None

    def probe(self) -> None:
        """Raise PublishError if only this process cannot publish: then it must not lead."""
        with suppress(RefusedError):
            self._dispatcher.probe()

    def scan(self) -> ScanResult:
        """Rescue expired claims, sweep, fire schedules, publish due tasks, maintain if it is time.

        While there is a backlog, passes that only publish come between; an idle pool costs one
        read. A PublishError comes after the duties that need no broker; another process may lead.
        """
        if self._last.more and time.monotonic() < self._whole_at:
            self._step_down_if(self._publish(fill_up=True))
            self._last = _wake_within(self._last, max(0.0, self._whole_at - time.monotonic()))
            return self._last
        self._whole_at = time.monotonic() + self._settings.scan_interval.total_seconds()
        checked = self.duties.check(self._check_idle())
        seen, trouble = checked.seen, None
        if (
            not checked.woken
            and not self._refused
            and seen is not None
            and not (seen.next_fire_s is not None and seen.next_fire_s <= 0)  # a schedule has fired
            and seen.is_quiet(self._settings.scan_interval + AHEAD)
        ):
            self._last = ScanResult()
        else:
            self.duties.rescue_and_sweep()
            trouble = self._publish()
        self._last = _wake_within(self._last, checked.next_s)
        self.duties.maintain()
        self.lead.done(self._last.depths)
        self._step_down_if(trouble)
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

    def _step_down_if(self, trouble: PublishError | None) -> None:
        """Let another process lead, unless the broker says that it refuses all of them."""
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
        self.duties.rescuer.check_clock(seen.at_s, asked_at)
        return seen

    def maintain(self) -> None:
        """Maintain, if it is time."""
        self.duties.maintain()


def _wake_within(scanned: ScanResult, next_s: float | None) -> ScanResult:
    if next_s is None or (scanned.next_due_s is not None and scanned.next_due_s <= next_s):
        return scanned
    return replace(scanned, next_due_s=next_s)


@dataclass(frozen=True, slots=True)
class Checked:
    """What gates, breakers and schedules came to."""

    seen: IdleCheck | None  # the idle check relied on; None: none, or tasks were let go since
    next_s: float | None  # until a gate or a schedule must be checked; None: there is none
    woken: int  # tasks that gates let pass


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
        self._load_gates = LoadGates(settings, database)
        self._database = database

    def check(self, seen: IdleCheck | None = None) -> Checked:
        """Check gates and breakers, and fire schedules; after an idle check only what it saw."""
        self._watcher.start()  # with the first call; it does not depend on later ones
        if seen is None or seen.gates:
            self._load_gates.switch()
        if (seen is None or seen.breakers) and advance_breakers(self._database):
            seen = None
        fires_s = self._scheduler.next_in_s() if seen is None else seen.next_fire_s
        if fires_s is not None and fires_s <= 0:
            self._scheduler.run_once()
            fires_s = self._scheduler.next_in_s()
        if seen is not None and (seen.next_look_s is None or seen.next_look_s > 0):
            gates = WakeResult(seen.next_look_s)
        else:
            gates = self._admission.wake_due()
        instants = [at_s for at_s in (fires_s, gates.next_s) if at_s is not None]
        return Checked(seen, min(instants, default=None), gates.woken)

    def rescue_and_sweep(self) -> bool:
        """Rescue and sweep; return whether a rescued task runs again."""
        rescued = self.rescuer.run_once()
        self._sweeper.run_once()
        return State.PENDING in rescued.values()

    def maintain(self) -> None:
        """Maintain, and add up the counters, if it is time."""
        self._maintainer.run_if_due()
        self._count_keeper.run_if_due()

    def stop(self) -> None:
        self._watcher.stop()
