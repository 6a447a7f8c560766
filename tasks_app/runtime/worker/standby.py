"""The standby: a thread of each child that stands in for beat when no beat lives.

A message to the control queue would not do: it would wait for children that are busy for a minute.
Nor would the housekeeper: a broker that hangs must not keep it from its renewals.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import PublishError
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.tables import database_now
from tasks_app.runtime.db.errors import patience_s
from tasks_app.runtime.leader.leader import Leader
from tasks_app.runtime.worker.child import Child

log = quiet_logger(__name__)

JOIN_S = 1.0
FRONT = 10  # tasks at the front of each queue that are looked at for one that nobody takes


@dataclass(frozen=True, slots=True)
class StandbyTiming:
    look_every_s: float = 1.0
    first_look_within_s: float = 0.25  # so that children that start together do not ask together
    longest_nap_s: float = 5.0  # while another process leads
    hungry_after: timedelta = timedelta(seconds=45)
    """A task that is due for so long, or for four scans, should have reached an idle child."""
    hunger_every_s: float = 6.0  # two of these, and a pause, before what the slot shows is stale
    stand_back_s: float = 5.0
    """After a message that the broker did not take: perhaps it takes one from another worker."""


class Standby:
    """One child's: it looks when the leader's lease could be over, and leads if it is."""

    def __init__(
        self,
        settings: Settings,
        leader: Leader,
        child: Child,
        timing: StandbyTiming = StandbyTiming(),
    ) -> None:
        self._timing = timing
        self._interval_s = settings.scan_interval.total_seconds()
        self._hungry_after = max(timing.hungry_after, 4 * settings.scan_interval)
        self._leader = leader
        self._child = child
        self._leads = False
        self._scan_at = self._hunger_at = 0.0
        self._failures = 0
        self._rng = Random()  # noqa: S311  jitter, not a secret
        self._thread = threading.Thread(target=self._work, name="tasks_app standby", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._child.inflight.stop()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    def _work(self) -> None:
        known = self._child.housekeeper.renewer.known
        known.wait(self._timing.look_every_s)  # or its scan would pass us by
        nap = self._rng.uniform(0.0, self._timing.first_look_within_s)
        while not self._child.inflight.stopping.wait(nap):  # it drains, ends, or has no parent
            nap = self._look()
        self._leader.lead.release()
        self._leader.duties.stop()

    def _look(self) -> float:
        jitter = self._rng.uniform(0.75, 1.25)
        try:
            self._feel_hunger()
            if not self._stand_in():
                taken_for_s = min(self._leader.lead.taken_for_s, self._timing.longest_nap_s)
                return max(
                    self._timing.look_every_s * jitter, taken_for_s + self._rng.uniform(0, 0.25)
                )
            if time.monotonic() >= self._scan_at:
                again_s = self._leader.scan().again_in(self._interval_s)
                self._scan_at = time.monotonic() + again_s
            self._failures = 0
            return min(self._scan_at - time.monotonic(), self._timing.look_every_s)
        except Exception as error:
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, 8th … time
                log.warning(
                    "standby failed %s times in a row: %s", self._failures, first_line(error)
                )
            return (
                self._timing.stand_back_s * jitter
                if isinstance(error, PublishError)
                else patience_s()
            )

    def _stand_in(self) -> bool:
        led, self._leads = self._leads, self._leader.hold()
        if self._leads != led:
            log.info("nobody scans, so this child does" if self._leads else "another one scans")
        return self._leads

    def _feel_hunger(self) -> None:
        """Show in the slot whether this child is idle while tasks are due that nobody takes."""
        if time.monotonic() < self._hunger_at:
            return
        self._hunger_at = time.monotonic() + self._timing.hunger_every_s
        idle_s = self._child.inflight.idle_s()
        hungry = idle_s > self._hungry_after.total_seconds() and self._is_passed_over()
        self._child.slot.hunger(hungry)

    def _is_passed_over(self) -> bool:
        """Whether a task that this child could run is due for long, although somebody scans."""
        identity, wait = self._child.identity, self._hungry_after
        with self._child.database.begin() as connection:
            scan = leader_lease.read_lease(connection, leader_lease.SCAN)
            if scan is None or scan.refused_since or scan.idle is None or scan.idle > wait / 2:
                return False
            fronts = dict.fromkeys(identity.queues, FRONT)
            found = find_due(connection, fronts, now=database_now(connection) - wait)
        known = frozenset(identity.handlers)
        return any(
            name in known and task_id not in rows.barred | rows.gated | rows.held
            for rows in found
            for task_id, name, _ in rows.rows()
        )
