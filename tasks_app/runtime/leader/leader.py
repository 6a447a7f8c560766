"""The leader: all that a leader does for everybody: rescue, maintain, fire, publish."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import PublishError, RefusedError
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.dispatch.idle_check import Glance, glance
from tasks_app.pool.dispatch.leader_lease import SCAN, Rank
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.dispatch.delay_lookahead import AHEAD
from tasks_app.runtime.dispatch.dispatcher import Dispatcher
from tasks_app.runtime.flow_control.admission import AdmissionControl, Look
from tasks_app.runtime.flow_control.breakers import Breakers
from tasks_app.runtime.flow_control.load_gate import LoadGates
from tasks_app.runtime.health_files import DB, Liveness
from tasks_app.runtime.leader.leadership import TTL, Leadership
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.leader.rescuer import Rescuer
from tasks_app.runtime.leader.sweeper import Sweeper
from tasks_app.runtime.publisher import DelayIndex, Publisher
from tasks_app.runtime.scan.result import ScanResult
from tasks_app.runtime.schedules.scheduler import Scheduler

log = quiet_logger(__name__)


class Leader:
    """One candidate for the lease of the scan, and what it does when it leads."""

    def __init__(  # noqa: PLR0913  it works with all of them
        self,
        settings: Settings,
        database: Database,
        publisher: Publisher,
        holder: str,
        *,
        rank: Rank = Rank.DEPUTY,
        token: UUID | None = None,
        ttl: timedelta = TTL,
        index: DelayIndex | None = None,
    ) -> None:
        self.database = database
        self.lead = Leadership(database, SCAN, holder, rank=rank, token=token, ttl=ttl)
        self._settings = settings
        self._dispatcher = Dispatcher(settings, database, publisher, index)
        self._rescuer = Rescuer(settings, database)
        self._sweeper = Sweeper(database)
        self._maintainer = Maintainer(database, holder, settings=settings)
        self._scheduler = Scheduler(database)
        self._admission = AdmissionControl(database)
        self._load_gates = LoadGates(database)
        self._breakers = Breakers(database)
        self._last = ScanResult()
        self._whole_at = 0.0
        self._refused = False
        """The broker did not take messages from who led last."""
        self._pulse = Liveness(DB, good_for_s=settings.healthy_for.total_seconds())

    def hold(self) -> bool:
        """Lead, if nobody of our rank or above does.

        When nobody scanned for so long that leases may have ended meanwhile, it was perhaps the
        database that was away: then the workers have the time of one renewal before any rescue.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        led = self.lead.held is not None
        self.lead.hold()
        self._pulse.beat()
        if self.lead.held is not None and not led:
            if self.lead.held.refused_since:
                self._refused = True
                self._dispatcher.doubt()
            idle = self.lead.held.idle
            if idle is None or idle > self._settings.renew_every:
                self._rescuer.let_renew()
        return self.lead.held is not None

    def probe(self) -> None:
        """Pass if we could publish, or nobody could: who alone cannot should not lead.

        Raises:
            PublishError: the last message did not go out, and the broker still does not answer.
        """
        with suppress(RefusedError):
            self._dispatcher.probe()

    def scan(self) -> ScanResult:
        """Rescue what is over, sweep, maintain if it is time, fire schedules, publish what is due.

        While a backlog is worked off, passes that only fill up come between; an idle pool costs
        one read. What needs no broker is done, and written down as done, whatever the broker says.

        Raises:
            PublishError: the broker did not take a message from us; whoever can may lead.
        """
        if self._last.more and time.monotonic() < self._whole_at:
            self._give_up(self._publish(fill_up=True))
            return self._last
        self._whole_at = time.monotonic() + self._settings.scan_interval.total_seconds()
        seen = self._glance()
        if seen is None or seen.gates:
            self._load_gates.look()
        if (seen is None or seen.breakers) and self._breakers.look():
            seen = None
        next_fire_s, look = self._fire(seen), self._look(seen)
        trouble = None
        if seen is not None and not look.woken and not self._refused and self._is_quiet(seen):
            self._last = ScanResult()
        else:
            self._rescuer.run_once()
            self._sweeper.run_once()
            trouble = self._publish()
        self._last = _awake_for(_awake_for(self._last, next_fire_s), look.next_s)
        self._maintainer.run_if_due()
        if not self._last.skipped:
            self.lead.done()
        self._give_up(trouble)
        return self._last

    def _publish(self, *, fill_up: bool = False) -> PublishError | None:
        """Publish what is due; return what the broker has against it."""
        try:
            self._last = self._dispatcher.run_once(fill_up=fill_up)
        except PublishError as error:
            self._last = ScanResult(published=1)
            return error
        if self._refused and not self._last.skipped:
            self.lead.taken()
            self._refused = False
            log.info("the broker takes messages again")
        return None

    def _give_up(self, trouble: PublishError | None) -> None:
        """Let somebody else lead whose messages are perhaps taken.

        Nobody's are where the broker says so itself: then who leads goes on with all the rest.
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

    def _glance(self) -> Glance | None:
        """Look from afar, if there was nothing to do the last time."""
        if self._last.did_something:
            return None
        asked_at = time.monotonic()
        with self.database.single() as connection:
            seen = glance(connection)
        self._rescuer.heard(seen.at_s, asked_at)
        return seen

    def _is_quiet(self, seen: Glance) -> bool:
        """Whether a look from afar found nothing, and no schedule has fired since."""
        fired = seen.next_fire_s is not None and seen.next_fire_s <= 0
        return not fired and seen.is_quiet(max(AHEAD, self._settings.scan_interval))

    def _fire(self, seen: Glance | None) -> float | None:
        """Fire the schedules that are due; return in how many seconds the next one is."""
        next_s = self._scheduler.next_in_s() if seen is None else seen.next_fire_s
        if next_s is None or next_s > 0:
            return next_s
        self._scheduler.run_once()
        return self._scheduler.next_in_s()

    def _look(self, seen: Glance | None) -> Look:
        """Look at the gates whose time has come."""
        if seen is not None and (seen.next_look_s is None or seen.next_look_s > 0):
            return Look(seen.next_look_s)
        return self._admission.look()

    def maintain(self) -> None:
        """Maintain, if it is time."""
        self._maintainer.run_if_due()


def _awake_for(scanned: ScanResult, next_s: float | None) -> ScanResult:
    """Return it with this instant among what to wake up for."""
    if next_s is None or (scanned.next_due_s is not None and scanned.next_due_s <= next_s):
        return scanned
    return replace(scanned, next_due_s=next_s)
