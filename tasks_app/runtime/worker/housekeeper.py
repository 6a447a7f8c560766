"""The housekeeper: a thread in each child that keeps its promises to the database.

It buries the dead, renews leases, shows that the child lives, writes outcomes that nobody else
wrote, gives back what others could run, and repeats every pending write until it is answered.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.settlement import CONNECTION_LOST
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.dispatch import ledger
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.release import release
from tasks_app.pool.runs.renew import renew
from tasks_app.pool.runs.rescue import rescue_claims
from tasks_app.pool.runs.settle import still_held
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import Remedy, is_unanswered, patience_s, remedy_for
from tasks_app.runtime.db.pending_writes import PendingWrite
from tasks_app.runtime.execution.settler import Settler
from tasks_app.runtime.handlers.active_run import ReturnedClaim
from tasks_app.runtime.health_files import DB, Liveness
from tasks_app.runtime.hooks import HOOKS, of_return
from tasks_app.runtime.identity import Identity
from tasks_app.runtime.inflight.inflight import ACQUITS_S, InFlight
from tasks_app.runtime.scoreboard.slot import Slot
from tasks_app.runtime.worker.reaper import Reaper
from tasks_app.runtime.worker.shutdown import Shutdown

log = quiet_logger(__name__)

REAP_EVERY_S = 2.0
PULSE_S = 0.25
"""The longest nap: how late a slow task's neighbours, and the worker's end, are noticed."""
IDLE_PULSE_S = 1.0
"""The same, while the child has nothing in hand."""
MOST_FAILED_WRITES = 1
"""Per round: it may have waited a second for a lock, and renewals are due."""
MOST_SHOWN = 100
"""Runs in a heartbeat row, the oldest first; async ones may run in thousands."""
LAST_WRITES = 10
"""The same, when the child ends: then nobody comes after us but the lease."""


class Housekeeper:
    """One child's helper thread. All its work is safe to repeat and to do late."""

    def __init__(  # noqa: PLR0913, PLR0917  it works for all of them
        self,
        settings: Settings,
        database: Database,
        inflight: InFlight,
        slot: Slot,
        settler: Settler,
        reaper: Reaper,
        departure: Shutdown,
        identity: Identity,
    ) -> None:
        self._settings = settings
        self._database = database
        self._inflight = inflight
        self._slot = slot
        self._settler = settler
        self._reaper = reaper
        self._departure = departure
        self._identity = identity
        self._shown: tuple[str, ...] = ()
        self._renew_at = self._reap_at = 0.0
        self._more_duties: list[Callable[[], None]] = []
        self._put_off: dict[Callable[[], None], float] = {}
        patience = settings.healthy_for + settings.renew_every
        self._pulse = Liveness(DB, good_for_s=patience.total_seconds())
        self._ends = threading.Event()
        self._thread = threading.Thread(
            target=self._work, name="tasks_app housekeeper", daemon=True
        )

    def start(self) -> None:
        """Begin; the first act is to reap the dead."""
        self._thread.start()

    def also(self, duty: Callable[[], None]) -> None:
        """Take on one more duty, to be done in every round; it must be cheap when idle."""
        self._more_duties.append(duty)

    def renew_soon(self) -> None:
        """Renew in this round: whoever was cancelled learns of it."""
        self._renew_at = 0.0

    def stop(self, patience_s: float) -> None:
        """End after the current round."""
        self._ends.set()
        self._inflight.wake.set()
        if self._thread.ident is not None:
            self._thread.join(patience_s)

    def _work(self) -> None:
        while not self._ends.is_set():
            try:
                self._round()
            except Exception as error:  # a handler took all memory, say: we outlive it
                log.critical("housekeeper: a round broke off: %s", type(error).__name__)

    def _round(self) -> None:
        """Do what is due, then nap. Who finds the database away spares it the other duties.

        A duty that it refuses is put off, the longer the more they are; the others go on.
        """
        nap_s = PULSE_S
        refused: list[Callable[[], None]] = []
        try:
            self._slot.beat()
            if self._identity.orphaned:
                self._inflight.stop()
            for duty in (
                self._depart,
                self._reap,
                self._flush,
                self._give_back,
                self._run_pending_writes,
                *self._more_duties,
                self._renew,
            ):
                if time.monotonic() < self._put_off.get(duty, 0.0):
                    continue
                try:
                    duty()
                except Exception as error:
                    log.warning(
                        "housekeeper: %s failed, again soon: %s", duty.__name__, brief(error)
                    )
                    if remedy_for(error) is Remedy.SPARE:
                        self._inflight.acquit()
                    if is_unanswered(error):
                        self._ends.wait(patience_s())
                        return
                    refused.append(duty)
            pause_s = len(refused) * patience_s()
            if self._renew in refused:  # whatever the lease is, it may be asked for three times
                pause_s = min(pause_s, self._settings.renew_every.total_seconds())
            self._put_off |= dict.fromkeys(refused, time.monotonic() + pause_s)
            nap_s = self._nap_s()
        finally:
            self._inflight.wake.wait(nap_s)
            self._inflight.wake.clear()

    def _nap_s(self) -> float:
        waited = self._inflight.oldest_finished_s()
        if waited is not None:
            left = self._settings.flush_after.total_seconds() - waited
            return max(0.005, min(PULSE_S, left))
        slow = self._settings.give_back_after.total_seconds()
        now = time.monotonic()
        naps = [
            slow - (now - run.since) for run in self._inflight.running() if not run.in_async_pool
        ]
        naps.append(self._renew_at - now)
        longest = PULSE_S if self._inflight.busy else min(IDLE_PULSE_S, slow)
        return max(0.01, min([longest, *(nap for nap in naps if nap > 0)]))

    def _depart(self) -> None:
        self._departure.drain()
        if self._departure.due:
            self._inflight.write_later(
                lambda connection: heartbeats.leave(connection, self._identity.owner)
            )
            self._departure.leave(self.last_round)

    def _reap(self) -> None:
        if time.monotonic() >= self._reap_at:
            self._reap_at = time.monotonic() + REAP_EVERY_S
            self._reaper.look()

    def _flush(self) -> None:
        waited = self._inflight.oldest_finished_s()
        if waited is not None and waited >= self._settings.flush_after.total_seconds():
            self._settler.flush()

    def _give_back(self) -> None:
        messages = self._inflight.take_back(self._settings.give_back_after.total_seconds())
        if messages:
            self._inflight.write_later(lambda connection: ledger.finish(connection, *messages))
        self._release()

    def _release(self) -> None:
        """Release what is on its way back; what somebody's lock holds up is asked for again."""
        groups: dict[tuple[timedelta, bool], list[ReturnedClaim]] = defaultdict(list)
        for item in self._inflight.returning():
            groups[item.wait, item.suspect].append(item)
        for (wait, suspect), items in groups.items():
            fences = [item.fence for item in items]
            with self._database.begin() as connection:
                idle_s = time.monotonic() - self._database.losses.idle
                suspect = suspect and idle_s > ACQUITS_S  # noqa: PLW2901
                if suspect:  # it answers us: so it ended their connections alone
                    done = rescue_claims(
                        connection,
                        fences,
                        lease=wait,
                        max_crashes=self._settings.max_crashes,
                        kind=CONNECTION_LOST,
                    )
                else:
                    done = release(connection, fences, wait=wait)
                left = [fence for fence in fences if fence.task_id not in done]
                held = still_held(connection, left) if left else set()
            for fence in fences:
                if fence.task_id not in held:
                    self._inflight.drop(fence)
            event = Event.RESCUE if suspect else Event.RELEASE
            HOOKS.tell(
                of_return(item.task, done[item.task.task_id], event, wait, CONNECTION_LOST)
                for item in items
                if item.task.task_id in done
            )

    def last_round(self) -> None:
        """Try to release and each pending write once more, when the thread has ended.

        Raises:
            sqlalchemy.exc.DBAPIError: something stays undone.
        """
        self._release()
        self._run_pending_writes(most_failed=LAST_WRITES)

    def _run_pending_writes(self, most_failed: int = MOST_FAILED_WRITES) -> None:
        """Do what others left to us. Who waits for somebody's lock goes behind the others."""
        pending_writes = self._inflight.pending_writes.take()
        failed: list[PendingWrite] = []
        trouble: Exception | None = None
        while pending_writes and len(failed) < most_failed:
            pending_write = pending_writes.pop(0)
            try:
                with self._database.begin() as connection:
                    pending_write(connection)
            except Exception as error:
                failed.append(pending_write)
                trouble = error
        self._inflight.pending_writes.leave([*pending_writes, *failed])
        if trouble is not None:
            raise trouble

    def _renew(self) -> None:
        queues = () if self._inflight.stopping.is_set() else self._identity.queues
        if time.monotonic() < self._renew_at and queues == self._shown:
            return
        fences, asked_at = self._inflight.held(), time.monotonic()
        with self._database.begin() as connection:
            heartbeats.beat(
                connection,
                owner=self._identity.owner,
                node=self._identity.node,
                queues=queues,
                handlers=self._identity.handlers,
                threads=self._identity.threads,
                running=self._running(),
            )
            renewal = renew(connection, fences, self._settings.lease) if fences else None
        if renewal is not None:  # told after our COMMIT, or its outcome meets our own lock
            self._inflight.cancel(renewal.cancelled)
            held_until = asked_at + self._settings.lease.total_seconds()
            self._inflight.renewed(renewal.ids, held_until)
        self._pulse.beat()
        self._shown = queues
        self._renew_at = time.monotonic() + self._settings.renew_every.total_seconds()

    def _running(self) -> Sequence[dict[str, object]]:
        now = time.monotonic()
        rows = []
        for run in self._inflight.running()[:MOST_SHOWN]:
            row: dict[str, object] = {
                "id": run.task.task_id,
                "name": run.task.name,
                "seconds": round(now - run.since, 1),
            }
            if run.progress is not None:
                row["fraction"], row["note"] = run.progress
            rows.append(row)
        return rows
