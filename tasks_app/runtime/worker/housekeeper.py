"""A thread of each child: renews leases, writes outcomes, returns claims, obeys operators."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.handlers.settlement import VANISHED
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.leases import FIRST_S, find_cancelled, release, renew, rescue_claims
from tasks_app.pool.runs.settle import still_held
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.cancel import Cancelled
from tasks_app.runtime.api.queues import pause_queue, resume_queue
from tasks_app.runtime.api.tasks import cancel_task, cancel_waiting_task
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import PendingWrite, Remedy, is_unanswered, patience_s, remedy_for
from tasks_app.runtime.execution.claim_states import HeldClaim
from tasks_app.runtime.execution.claims import ChildParts
from tasks_app.runtime.execution.executor import Executor
from tasks_app.runtime.execution.in_flight import OUTAGE_GRACE_S
from tasks_app.runtime.execution.settler import report_returned
from tasks_app.runtime.handlers.checkpoint import ActiveRun
from tasks_app.runtime.health_files import DB, Liveness
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_outline
from tasks_app.runtime.run_times import RunTimeReport
from tasks_app.runtime.statistics import CountReport
from tasks_app.runtime.tracing.run_logs import ATTEMPTS
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox
from tasks_app.runtime.worker.reaper import Reaper
from tasks_app.runtime.worker.shutdown import Shutdown
from tasks_app.runtime.worker.stacks import StackReport

log = quiet_logger(__name__)
REAP_EVERY_S = 2.0
ROUND_S = 0.25
"""The longest pause: how late a slow task's neighbours, and the worker's end, are noticed."""
IDLE_ROUND_S = 1.0  # the same, while the child has nothing in hand
MOST_FAILED_WRITES = 1  # per round: it may have waited a second for a lock, and renewals are due
LAST_WRITES = 10  # the same, when the child ends: what is left then waits for the end of its lease


class Housekeeper:
    """One child's helper thread. All its work is safe to repeat and to do late."""

    def __init__(
        self,
        parts: ChildParts,
        *,
        executor: Executor,
        reaper: Reaper,
        shutdown: Shutdown,
        mailbox: Mailbox,
    ) -> None:
        settings = parts.settings
        self._flush_after_s = settings.flush_after.total_seconds()
        self._give_back_after_s = settings.give_back_after.total_seconds()
        self._renew_every_s = settings.renew_every.total_seconds()
        self._database = parts.database
        self._inflight = parts.inflight
        self._slot = parts.slot
        self._identity = parts.identity
        self._settler = executor.settler
        self._reaper = reaper
        self._shutdown = shutdown
        self.renewer = LeaseRenewer(parts)
        self._returner = ClaimReturner(parts)
        self.cancels = CancelWatch(parts)
        self._commands = ControlCommands(parts.database, mailbox)
        self._counts = CountReport(parts.database)
        self._run_times = RunTimeReport(
            parts.database,
            executor.run_times.snapshot,
            parts.registry,
            threads=1 + executor.threads.number,
            async_concurrency=settings.async_concurrency,
        )
        self._duties: tuple[Callable[[], None], ...] = (
            self._depart,
            self._reap,
            self._flush,
            self._returner.give_back,
            self._run_pending_writes,
            self._counts.write_counts,
            parts.admission.wake_after_runs,
            executor.fetcher.prepare_statements,
            self._run_times.report,
            self._commands.carry_out,
            self.cancels.interrupt_cancelled,
            executor.async_pool.warn_if_blocked,
            executor.dependencies.tell,
            executor.runner.locks.renewals.renew_locks,
            ATTEMPTS.tell,
            StackReport(parts, executor.async_pool).report_stacks,
            self.renewer.renew,
        )
        """Done in every round, so they must be cheap when idle."""
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
        self._ends.set()
        self._inflight.housekeeper_wake.set()
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
                        "housekeeper: %s failed, again soon: %s", duty.__name__, first_line(error)
                    )
                    if remedy_for(error) is Remedy.SPARE:
                        self._inflight.note_outage()
                    if is_unanswered(error):
                        self._ends.wait(patience_s())
                        return
                    refused.append(duty)
            pause_s = len(refused) * patience_s()
            if self.renewer.renew in refused:  # a lease, however short, may be asked for thrice
                pause_s = min(pause_s, self._renew_every_s)
            self._put_off |= dict.fromkeys(refused, time.monotonic() + pause_s)
            nap_s = self.next_nap_s()
        finally:
            self._inflight.housekeeper_wake.wait(nap_s)
            self._inflight.housekeeper_wake.clear()

    def _end_as_orphan(self) -> None:
        """Claim nothing more: the parent, which kills children at a hard limit, is gone."""
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
        naps.append(self.renewer.due_at - now)
        longest = ROUND_S if self._inflight.busy else min(IDLE_ROUND_S, slow_s)
        return max(0.01, min([longest, *(nap for nap in naps if nap > 0)]))

    def _depart(self) -> None:
        self._shutdown.drain()
        if self._shutdown.due:
            self._inflight.write_later(
                lambda connection: heartbeats.remove_heartbeat(connection, self._identity.owner)
            )
            self._shutdown.leave(self.last_round, lambda: self._counts.write_counts(last=True))

    def _reap(self) -> None:
        if time.monotonic() >= self._reap_at:
            self._reap_at = time.monotonic() + REAP_EVERY_S
            self._reaper.reap_dead()

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
        self._counts.write_counts(last=True)

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


NEWS_EVERY_S = 1.0  # how often a heartbeat tells what runs report, between renewals
MOST_SHOWN = 100  # runs in a heartbeat row, the oldest first; async ones may run in thousands


class LeaseRenewer:
    """A duty of the housekeeper."""

    def __init__(self, parts: ChildParts) -> None:
        settings = parts.settings
        self._lease = settings.lease
        self._every_s = settings.renew_every.total_seconds()
        self._identity = parts.identity
        self._database = parts.database
        self._inflight = parts.inflight
        self._queues_shown: tuple[str, ...] = ()
        self.due_at = 0.0  # by ``time.monotonic``
        self._news_at = 0.0
        self.known = threading.Event()
        """Set once the scan can see that this child serves its queues."""
        patience = settings.healthy_for + settings.renew_every
        self._liveness = Liveness(DB, good_for_s=patience.total_seconds())

    def renew(self) -> None:
        """Renew if it is time; a child that stops shows at once that it serves no queue."""
        queues = () if self._inflight.stopping.is_set() else self._identity.queues
        if time.monotonic() < self.due_at and queues == self._queues_shown:
            self._tell_news(queues)
            return
        self._inflight.return_unowned()
        fences, asked_at = self._inflight.held(), time.monotonic()
        with self._database.begin() as connection:
            self._beat(connection, queues)
            renewed = renew(connection, fences, self._lease) if fences else None
        if renewed:
            held_until = asked_at + self._lease.total_seconds()
            self._inflight.renewed(renewed, held_until)
        self._liveness.beat()
        self._queues_shown = queues
        self.known.set()
        self.due_at = time.monotonic() + self._every_s

    def _tell_news(self, queues: Sequence[str]) -> None:
        if time.monotonic() < self._news_at:
            return
        if any(run.has_news for run in self._inflight.running()):
            self._news_at = time.monotonic() + NEWS_EVERY_S
            with self._database.begin() as connection:
                self._beat(connection, queues)

    def _beat(self, connection: Connection, queues: Sequence[str]) -> None:
        heartbeats.write_heartbeat(
            connection,
            owner=self._identity.owner,
            node=self._identity.node,
            queues=queues,
            handlers=self._identity.handlers,
            threads=self._identity.threads,
            running=self._running(),
        )

    def _running(self) -> Sequence[dict[str, object]]:
        now = time.monotonic()
        rows = []
        runs = self._inflight.running()
        for run in runs:
            run.has_news = False  # before it is read: what comes meanwhile is told again
        for run in runs[:MOST_SHOWN]:
            row: dict[str, object] = {
                "id": run.task.task_id,
                "name": run.task.name,
                "seconds": round(now - run.since, 1),
            }
            if self._identity.parent is not None:  # who kills it
                row["hard_timeout"] = run.hard_timeout_s
            if run.progress is not None:
                row["fraction"], row["note"] = run.progress
            if run.reported is not None:
                row["attempt"] = run.task.fence.attempt
                row["state"], row[heartbeats.DETAILS] = run.reported
            rows.append(row)
        return rows


CANCEL_LOOK_S = 0.75
"""How old a run is before anyone asks whether it was cancelled, and how long between two looks."""


class CancelWatch:
    """A duty of the housekeeper: cancels reach the runs, and the parent that is to kill them."""

    def __init__(self, parts: ChildParts) -> None:
        self._database = parts.database
        self._registry = parts.registry
        self._inflight = parts.inflight
        self._slot = parts.slot
        self._watched = parts.identity.watched
        self._look_at = 0.0
        self._not_killed: set[Fence] = set()  # of which that was logged

    def interrupt_cancelled(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        runs = [run for run in self._inflight.running() if now - run.since >= CANCEL_LOOK_S]
        if not runs:
            self._not_killed.clear()
            return
        self._look_at = now + CANCEL_LOOK_S
        with self._database.begin() as connection:
            cancelled = find_cancelled(connection, [run.task.fence for run in runs])
        for run in runs:
            if run.task.task_id in cancelled:
                run.cancelled = True
                spec = self._registry.get(run.task.name)
                if spec is not None and spec.cancellable:
                    self._end(run, cancelled[run.task.task_id])

    def _end(self, run: ActiveRun, kill_in_s: float | None) -> None:
        if not run.interrupted and run.call is not None:
            run.interrupted = run.call.interrupt()
        if kill_in_s is None:
            return
        if self._watched:
            self._slot.kill_by(run.task.run, time.monotonic() + kill_in_s)
        elif kill_in_s <= 0 and run.task.fence not in self._not_killed:
            self._not_killed.add(run.task.fence)
            log.warning(
                "task %s (%s) was cancelled and does not end. No process of this pool can be "
                "killed alone; use prefork", run.task.task_id, run.task.name,
            )  # fmt: skip


class ClaimReturner:
    """A duty of the housekeeper."""

    def __init__(self, parts: ChildParts) -> None:
        self._give_back_after_s = parts.settings.give_back_after.total_seconds()
        self._max_crashes = parts.settings.max_crashes
        self._database = parts.database
        self._inflight = parts.inflight

    def give_back(self) -> None:
        self._inflight.take_back(self._give_back_after_s)
        self.release()

    def release(self) -> None:
        """Release what is on its way back; what somebody's lock holds up is asked for again."""
        groups: dict[tuple[timedelta, str], list[HeldClaim]] = defaultdict(list)
        for item in self._inflight.returning():
            groups[item.wait, item.crash].append(item)
        for (wait, crash), items in groups.items():
            self._release(items, wait, crash=crash)

    def _release(self, items: list[HeldClaim], wait: timedelta, *, crash: str) -> None:
        fences = [item.fence for item in items]
        refused = set[int]()
        with self._database.begin() as connection:
            idle_s = time.monotonic() - self._database.losses.idle
            if idle_s <= OUTAGE_GRACE_S:
                crash = ""
            if crash:  # it answers us: so it was they alone
                done = rescue_claims(
                    connection,
                    fences,
                    lease=wait,
                    max_crashes=self._max_crashes,
                    kind=crash,
                    left=refused,  # to the end of their leases
                )
            else:
                done = release(connection, fences, wait=wait, left=refused)
            left = [f for f in fences if f.task_id not in done and f.task_id not in refused]
            held = still_held(connection, left) if left else set()
        back_at = time.monotonic() + (FIRST_S if crash else wait.total_seconds())
        self._inflight.back_at = max(self._inflight.back_at, back_at)
        for fence in fences:
            if fence.task_id not in held:
                self._inflight.drop(fence)
        event = Event.RESCUE if crash else Event.RELEASE
        report_returned([item.task for item in items], done, event, wait, crash or VANISHED)


CONTROL_ACTOR = "remote control"


class ControlCommands:
    """A duty of the housekeeper. Every worker gets each command, so it may be done already."""

    def __init__(self, database: Database, mailbox: Mailbox) -> None:
        self._database = database
        self._mailbox = mailbox

    def carry_out(self) -> None:
        """Do what waits in the mailbox.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: one could not be done now; it waits for the next look.
        """
        if not self._mailbox.has_news():
            return
        for taken, command in self._mailbox.take():
            try:
                self._do(command)
            except BaseException:
                self._mailbox.put_back(taken)
                raise
            self._mailbox.done(taken)

    def _do(self, command: ControlCommand) -> None:
        match command.do:
            case Do.REVOKE | Do.CANCEL:
                for task_id in command.ids:
                    self._cancel(task_id, command)
            case Do.PAUSE:
                with self._database.begin() as connection:
                    changed = pause_queue(
                        connection, command.queue, command.reason, by=CONTROL_ACTOR
                    )
                if changed:
                    log.warning("queue %s is paused", command.queue)
            case Do.RESUME:
                with self._database.begin() as connection:
                    resumed = resume_queue(connection, command.queue, by=CONTROL_ACTOR)
                if resumed:
                    log.warning("resumed: queue %s", ", ".join(resumed))
            case Do.COUNT_STRANGERS:
                with self._database.begin() as connection:
                    leader_lease.count_foreign_messages(
                        connection, leader_lease.SCAN, sum(command.ids)
                    )

    def _cancel(self, task_id: int, command: ControlCommand) -> None:
        with self._database.begin() as connection:
            if command.do is Do.REVOKE:
                answer = cancel_waiting_task(connection, task_id, CONTROL_ACTOR)
            else:
                answer = cancel_task(
                    connection, task_id, kill_after=command.kill_after_s, by=CONTROL_ACTOR
                )
            over = answer is Cancelled.CANCELLED
            outlines = browse.outlines(connection, [task_id]) if over else []
        log.info("cancel task %s, as asked from outside: %s", task_id, answer)
        HOOKS.tell(of_outline(outline, NoticeKind.CANCELLED) for outline in outlines)
