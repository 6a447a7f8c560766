"""The rescuer: takes back what vanished workers held, when its lease is over."""

from __future__ import annotations

import time
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import count
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection import clock
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.pool.tasks import browse
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_outline

log = quiet_logger(__name__)

TOLERATED = 0.1
"""Of a renewal interval: by so much the database's clock may seem to go forward."""


class ClockWatch:
    """Whether the database's clock went forward by more than time did.

    At a failover another machine's clock goes on. If it is ahead by more than a lease, every lease
    is over at once, and no worker is dead.
    """

    def __init__(self, tolerated_s: float) -> None:
        self._tolerated_s = tolerated_s
        self._told: tuple[float, float] | None = None

    def jumped_s(self, said_s: float, asked_at: float) -> float:
        """Return how far the clock jumped since it was last asked; 0: no farther than tolerated.

        ``said_s`` is its answer to a question asked at ``asked_at`` by ``time.monotonic``. A slow
        answer is no jump; a clock that goes back makes leases longer, which does no harm.
        """
        told, self._told = self._told, (said_s, asked_at)
        if told is None:
            return 0.0
        passed_s = time.monotonic() - told[1]
        ahead_s = said_s - told[0] - passed_s
        return ahead_s if ahead_s > self._tolerated_s else 0.0


class Rescuer:
    """Any number may run; the statement re-checks each lease when it writes."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._admission = AdmissionControl(database)
        self.wait_until = 0.0
        """Nothing is rescued before, by ``time.monotonic``."""
        self._watch = ClockWatch(TOLERATED * settings.renew_every.total_seconds())

    def let_renew(self) -> None:
        """Rescue nothing for one renewal interval: workers may be about to renew."""
        self.wait_until = time.monotonic() + self._settings.renew_every.total_seconds()

    def heard(self, said_s: float, asked_at: float) -> bool:
        """Compare the database's clock with ours; True: it jumped, and the workers may renew.

        To be called again and again: what the clock did before the first answer is unknown.
        """
        ahead_s = self._watch.jumped_s(said_s, asked_at)
        if ahead_s:
            log.warning("the database's clock jumped by %.1f s: no rescue until renewals", ahead_s)
            self.let_renew()
        return ahead_s > 0

    def run_once(self, *, now: datetime | None = None) -> dict[int, State]:
        """Rescue what is over; return where each task went.

        After an outage of the database, or a jump of its clock, it waits for one renewal interval:
        workers could not renew meanwhile, and are about to.
        """
        asked_at = time.monotonic()
        if asked_at < self.wait_until:
            return {}
        try:
            with self._database.begin() as connection:
                if self.heard(clock.tell(connection, now=now), asked_at):
                    return {}
                rescued = rescue_expired(
                    connection,
                    lease=self._settings.lease,
                    max_crashes=self._settings.max_crashes,
                    now=now,
                )
                over = [i for i, state in rescued.items() if state is State.FAILED]
                outlines = browse.outlines(connection, list(rescued) if HOOKS.wanted else over)
        except SQLAlchemyError:
            self.let_renew()
            raise
        if rescued:
            self._admission.gone(rescued, now=now)
            log.warning("rescued %s of vanished workers", count(len(rescued), "task"))
            HOOKS.tell(of_outline(outline, NoticeKind.RESCUED) for outline in outlines)
        return rescued
