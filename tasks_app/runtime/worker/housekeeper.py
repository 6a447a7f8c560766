"""The housekeeper: a thread in each child that keeps leases and outcomes up to date.

It reaps dead siblings, renews leases, shows that the child lives, writes outcomes that nobody else
wrote, gives back what others could run, and repeats every pending write until it is answered.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.errors import Remedy, is_unanswered, patience_s, remedy_for
from tasks_app.runtime.db.pending_writes import PendingWrite
from tasks_app.runtime.execution.settler import Settler
from tasks_app.runtime.inflight.parts import ChildParts
from tasks_app.runtime.statistics.count_report import CountReport
from tasks_app.runtime.worker.claim_returner import ClaimReturner
from tasks_app.runtime.worker.lease_renewer import LeaseRenewer
from tasks_app.runtime.worker.reaper import Reaper
from tasks_app.runtime.worker.shutdown import Shutdown

log = quiet_logger(__name__)

REAP_EVERY_S = 2.0
ROUND_S = 0.25
"""The longest pause: how late a slow task's neighbours, and the worker's end, are noticed."""
IDLE_ROUND_S = 1.0
"""The same, while the child has nothing in hand."""
MOST_FAILED_WRITES = 1
"""Per round: it may have waited a second for a lock, and renewals are due."""
LAST_WRITES = 10
"""The same, when the child ends: what is left then waits for the end of its lease."""


class Housekeeper:
    """One child's helper thread. All its work is safe to repeat and to do late."""

    def __init__(
        self,
        parts: ChildParts,
        settler: Settler,
        reaper: Reaper,
        shutdown: Shutdown,
        renewer: LeaseRenewer,
        returner: ClaimReturner,
        more_duties: Sequence[Callable[[], None]] = (),
    ) -> None:
        """``more_duties`` are done in every round, so they must be cheap when idle."""
        settings = parts.settings
        self._flush_after_s = settings.flush_after.total_seconds()
        self._give_back_after_s = settings.give_back_after.total_seconds()
        self._renew_every_s = settings.renew_every.total_seconds()
        self._database = parts.database
        self._inflight = parts.inflight
        self._slot = parts.slot
        self._identity = parts.identity
        self._settler = settler
        self._reaper = reaper
        self._shutdown = shutdown
        self._renewer = renewer
        self._returner = returner
        self._report = CountReport(parts.database)
        self._duties = (
            self._depart,
            self._reap,
            self._flush,
            returner.give_back,
            self._run_pending_writes,
            self._report.write_counts,
            *more_duties,
            renewer.renew,
        )
        self._reap_at = 0.0
        self._put_off: dict[Callable[[], None], float] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(
            target=self._work, name="tasks_app housekeeper", daemon=True
        )

    def start(self) -> None:
        """Start; the first duty is to reap dead siblings."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, patience_s: float) -> None:
        """End after the current round."""
        self._ends.set()
        self._inflight.wake.set()
        if self._thread.ident is not None:
            self._thread.join(patience_s)

    def _work(self) -> None:
        while not self._ends.is_set():
            try:
                self.round()
            except Exception as error:  # a handler took all memory, say: we go on
                log.critical("housekeeper: a round was aborted: %s", type(error).__name__)

    def round(self) -> None:
        """Do what is due, then wait. If the database is away, the other duties are left out.

        A duty that it refuses is put off, for longer the more of them it refuses; others go on.
        """
        nap_s = ROUND_S
        refused: list[Callable[[], None]] = []
        try:
            self._slot.beat()
            if self._identity.orphaned:
                self._end_as_orphan()
            for duty in self._duties:
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
            if self._renewer.renew in refused:  # a lease, however short, may be asked for thrice
                pause_s = min(pause_s, self._renew_every_s)
            self._put_off |= dict.fromkeys(refused, time.monotonic() + pause_s)
            nap_s = self.next_nap_s()
        finally:
            self._inflight.wake.wait(nap_s)
            self._inflight.wake.clear()

    def _end_as_orphan(self) -> None:
        """Claim nothing more; the parent is gone, who would kill us at a hard limit."""
        self._inflight.stop()
        now = time.monotonic()
        for run in self._inflight.running():
            if run.hard_timeout_s is not None and now > run.since + run.hard_timeout_s:
                log.error(
                    "process %s has lost its parent and kills itself: task %s (%s) ran past its "
                    "hard limit", os.getpid(), run.task.task_id, run.task.name,
                )  # fmt: skip
                os.kill(os.getpid(), signal.SIGKILL)

    def next_nap_s(self) -> float:
        waited = self._inflight.oldest_finished_s()
        if waited is not None:
            left = self._flush_after_s - waited
            return max(0.005, min(ROUND_S, left))
        slow_s = self._give_back_after_s
        now = time.monotonic()
        naps = [
            slow_s - (now - run.since) for run in self._inflight.running() if not run.in_async_pool
        ]
        naps.append(self._renewer.due_at - now)
        longest = ROUND_S if self._inflight.busy else min(IDLE_ROUND_S, slow_s)
        return max(0.01, min([longest, *(nap for nap in naps if nap > 0)]))

    def _depart(self) -> None:
        self._shutdown.drain()
        if self._shutdown.due:
            self._inflight.write_later(
                lambda connection: heartbeats.leave(connection, self._identity.owner)
            )
            self._shutdown.leave(self.last_round, lambda: self._report.write_counts(last=True))

    def _reap(self) -> None:
        if time.monotonic() >= self._reap_at:
            self._reap_at = time.monotonic() + REAP_EVERY_S
            self._reaper.look()

    def _flush(self) -> None:
        waited = self._inflight.oldest_finished_s()
        if waited is not None and waited >= self._flush_after_s:
            self._settler.flush_unless_busy()

    def last_round(self) -> None:
        """Try to release, each pending write and the counts once more, when the thread has ended.

        Raises:
            sqlalchemy.exc.DBAPIError: something stays undone.
        """
        self._returner.release()
        self._run_pending_writes(most_failed=LAST_WRITES)
        self._report.write_counts(last=True)

    def _run_pending_writes(self, most_failed: int = MOST_FAILED_WRITES) -> None:
        """Do what others left to us. A write that waits for a lock goes behind the others."""
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
