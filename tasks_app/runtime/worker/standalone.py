"""A worker without a broker: it claims due tasks itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from math import inf

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from tasks_app.domain.config.setting_sources import unknown_variables
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import MIB, count
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.scan import DueRows, Upcoming, find_due, find_upcoming
from tasks_app.pool.dispatch.set_aside import handlers_of_other_workers
from tasks_app.pool.runs.leases import FIRST_S
from tasks_app.runtime.db.errors import is_crowded, patience_s
from tasks_app.runtime.flow_control.admission import AdmissionControl, AdmissionVerdict
from tasks_app.runtime.flow_control.breakers import bring_in_breakers
from tasks_app.runtime.handler_db.driver_internals import notices_at_start
from tasks_app.runtime.handlers.middleware import Middleware, load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.health_files import resident_bytes
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.leader.leader import Duties
from tasks_app.runtime.notify import Listener
from tasks_app.runtime.scan import Pace, ScanPosition, Throttle, triage_found
from tasks_app.runtime.schedules.declared import bring_in_schedules
from tasks_app.runtime.scoreboard import Scoreboard, slot_file
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.supervisor import heed_signals, heed_signals_of_child

log = quiet_logger(__name__)


@dataclass(frozen=True, slots=True)
class RecycleLimits:
    """When a child makes room for a new one; with neither it stays."""

    tasks: int | None = None
    memory: int | None = None  # bytes, looked at between tasks

    def left(self, claimed: int) -> float:
        """Return how many more tasks a child may claim."""
        return inf if self.tasks is None else self.tasks - claimed

    def passed(self, claimed: int) -> str:
        """Say which limit a child has passed; empty: none. A child runs one task at least."""
        if self.left(claimed) <= 0:
            return f"{count(claimed, 'task')} (--max-tasks)"
        if self.memory is not None and claimed and (held := resident_bytes()) > self.memory:
            return f"{count(claimed, 'task')}, with {held // MIB} MB in memory (--max-memory)"
        return ""


def run_work(
    settings: Settings,
    *,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
    threads: int = 1,
    drain: bool = False,
    middleware: Sequence[Middleware] | None = None,
    slots: Scoreboard | None = None,
    handle_signals: bool = False,
    limits: RecycleLimits = RecycleLimits(),
) -> bool:
    """Run tasks in this process until it is told to stop; with ``drain``, until nothing is due.

    Handlers run in this thread and ``threads - 1`` others. ``queues`` empty: ``default`` and those
    of the handlers. With ``handle_signals``, SIGTERM and SIGINT end it after the running tasks;
    what has not started goes back. A second one, or SIGQUIT, lets go of what runs.

    Returns:
        Whether it ended as it has passed one of the ``limits``, so that another is to go on.
    """
    for sentence in notices_at_start():
        log.warning(sentence)
    for finding in unknown_variables():
        log.warning("%s. %s", finding.fact, finding.advice)
    slots = slots or slot_file()
    served = tuple(queues) or registry.queues
    child = Child(
        settings,
        registry,
        slots,
        queues=served,
        middleware=load_middleware(settings.layers) if middleware is None else middleware,
        extra_threads=threads - 1,
    )
    if handle_signals and child.identity.parent is None:
        heed_signals(slots)
    elif handle_signals:
        heed_signals_of_child(child.inflight)
    try:
        bring_in_schedules(child.database, registry)
        bring_in_breakers(child.database, registry)
    except BaseException:
        child.slot.free()  # or the parent would take us for killed, and start another
        raise
    child.start()
    log.info("ready: %s; queues: %s", count(len(registry.names), "handler"), ", ".join(served))
    try:
        names = set(child.identity.handlers)
        return StandaloneWorker(settings, child, served, names, limits=limits).run(drain=drain)
    except OperationalError:  # it gave up, and holds nothing
        child.stop()
        child.slot.free()  # even if its last writes were not answered: or it would be replaced
        raise
    finally:
        child.stop()
        child.retire_if_unfit()


TIDY_AT_MOST = 1_000
ON_THE_WAY_S = 0.1
"""The look ahead may take so long to reach the database: what is due since then is not missed."""
DRAIN_NAP_S = 0.1  # between two looks of a child that waits for its siblings' last tasks
NOTICE_S = 0.2  # within which the parent has seen that a child retires
SHORTEST_NAP_S = 0.005  # instants that lie closer together are served together
FRUITLESS = Pace(0.0, 20, 0.1)
"""A notice wakes all idle children, and one gets the task: the looks of the others take a twentieth
of their time. Who has just got one does not rest: it may have been there before its notice."""


class StandaloneWorker:
    def __init__(
        self,
        settings: Settings,
        child: Child,
        queues: tuple[str, ...],
        names: set[str],
        front: ScanPosition | None = None,
        limits: RecycleLimits = RecycleLimits(),
    ) -> None:
        self._settings = settings
        self.child = child
        self._inflight = child.inflight
        self._queues = queues
        self._names = names
        self.duties = Duties(settings, child.database, child.identity.owner)
        self._slot = child.slot
        self._limits = limits
        self._claimed = 0
        self._claimed_at = 0.0
        self._front = front or ScanPosition()
        self._admission = AdmissionControl(child.database)
        self._crowded_since: float | None = None
        self._noticed = False
        self._mark_at = 0.0
        self._fruitless = Throttle(FRUITLESS)
        self._pause_s = 0.0

    def run(self, *, drain: bool = False) -> bool:
        """Work until the in-flight set is stopped; with ``drain``, until nothing is due or running.

        Return whether a limit was passed before: then it ends after the tasks that it has.

        A worker that stays lets workers renew before any rescue: the database's clock may have just
        jumped. A drain has no time for that.

        Raises:
            sqlalchemy.exc.OperationalError: a drain claimed nothing for as long as a lease lasts,
                since the server had no connection left.
        """
        if not drain:
            self.duties.rescuer.let_renew()
        self.child.executor.threads.start()
        listens = self._settings.hints and not drain
        with Listener(self.child.database, self.notice) if listens else nullcontext():
            retires = self._work(drain=drain)
        self._inflight.stop()
        self.duties.stop()
        self.child.await_runs()
        return retires

    def _work(self, *, drain: bool) -> bool:
        while not self._inflight.over:
            self._every(self.tidy)
            taken = self.claim(drain=drain)
            if taken is None:
                self._inflight.stopping.wait(patience_s())
            threads = self.child.executor.threads.number
            if threads and self._room <= 0:  # the other threads are idle while this one is busy
                self._slot.retire()
            self.child.executor.run_waiting(threads if taken else 0)
            if passed := self._limits.passed(self._claimed):
                log.info("ends after %s; another process takes its place", passed)
                self._slot.retire()
                self.child.executor.run_waiting()
                self._inflight.stopping.wait(NOTICE_S)
                return True
            if taken:
                continue
            if drain and self._drained():
                break
            self.nap(DRAIN_NAP_S if drain else None)
        return False

    def notice(self, queues: set[str]) -> None:
        """End the nap: there may be work in these queues; none: in any."""
        if not queues or not queues.isdisjoint(self._queues):
            self._noticed = True
            self._inflight.claimer_wake.set()

    def claim(self, *, drain: bool = False) -> int | None:
        """Claim what is due; return how many, or None if the database did not answer."""
        self._claimed_at = time.monotonic()
        noticed, self._noticed = self._noticed, False
        try:
            taken = self.child.executor.top_up(self._queues, most=self._room)
        except SQLAlchemyError as error:
            if drain and self._is_hopeless(error):
                raise
            return None
        self._crowded_since = None
        self._claimed += taken
        if taken:
            self._fruitless.forget()
        elif noticed:
            self._pause_s = self._fruitless.pause_after(time.monotonic() - self._claimed_at)
        return taken

    @property
    def _room(self) -> float:
        return self._limits.left(self._claimed)

    def _is_hopeless(self, error: SQLAlchemyError) -> bool:
        """Whether a drain has waited for a connection for as long as a lease, and runs nothing."""
        if not is_crowded(error):
            self._crowded_since = None
            return False
        now = time.monotonic()
        if self._crowded_since is None:
            self._crowded_since = now
        waited_s = now - self._crowded_since
        return waited_s > self._settings.lease.total_seconds() and self._inflight.empty

    def _drained(self) -> bool:
        """Whether nothing is in flight, no dead sibling is left, and a last look finds nothing due.

        What siblings run may make something due, so no child leaves before the last is over. What
        was rescued or given back may be due again only after some seconds.
        """
        if not self._inflight.empty or self.child.executor.busy or self._slot.others_run:
            return False
        self._slot.tidy_at = 0.0
        self._every(self.tidy)
        try:
            if self.child.reap():
                return False
            taken = self.child.executor.top_up_whole(self._queues, self._room)
            self._claimed += taken
            if taken:
                return False
            left_s = self._inflight.back_at - time.monotonic()
            return left_s <= 0 or not self._upcoming(left_s)
        except SQLAlchemyError:
            return False

    def nap(self, longest_s: float | None = None) -> None:
        """Wait for the next row or the next scan, or shortly while runners are still busy.

        The end of a run ends the nap: its thread is free, and it may have made room for others.
        """
        interval = longest_s or self._settings.scan_interval.total_seconds()
        if not self._inflight.empty:
            interval = min(0.02, interval)
        else:
            with suppress(SQLAlchemyError):
                near = self._upcoming(self._settings.scan_interval.total_seconds())
                interval = min([interval, *(task.due_in_s + SHORTEST_NAP_S for task in near)])
            interval = max(0.0, min(interval, self._slot.tidy_at - time.monotonic()))
            pause_s, self._pause_s = min(self._pause_s, interval), 0.0
            if self._inflight.stopping.wait(pause_s):
                return
            interval -= pause_s
        self._inflight.claimer_wake.wait(interval)
        self._inflight.claimer_wake.clear()

    def _upcoming(self, within_s: float) -> list[Upcoming]:
        with self.child.database.begin() as connection:
            since = timedelta(seconds=time.monotonic() - self._claimed_at + ON_THE_WAY_S)
            return find_upcoming(connection, self._queues, timedelta(seconds=within_s), since=since)

    def _every(self, duty: Callable[[], None]) -> None:
        try:
            duty()
        except SQLAlchemyError as error:
            log.warning("the database failed, trying again soon: %s", first_line(error))
            self._inflight.stopping.wait(patience_s())

    def _known(self, connection: Connection, found: DueRows) -> set[str]:
        """Return what some live worker of the queue knows: tasks of others are left to them."""
        if self._names.issuperset(found.names):
            return self._names
        lease = self._settings.lease
        others = handlers_of_other_workers(connection, [found.queue], self._names, lease)
        return self._names | others

    def tidy(self) -> None:
        """Do the duties and sort out what is due, once per scan interval; maintain once per hour.

        One child of the worker does it for all of them: the first that comes. A schedule is fired
        when its instant comes, not at the end of the interval.
        """
        now = time.monotonic()
        if now < self._slot.tidy_at:
            return
        self._slot.tidy_at = now + self._settings.scan_interval.total_seconds()
        looked = self.duties.check()
        if looked.next_s is not None:
            soon = time.monotonic() + max(looked.next_s, SHORTEST_NAP_S)
            self._slot.tidy_at = min(self._slot.tidy_at, soon)
        if self.duties.rescue_and_sweep():
            self._inflight.back_at = max(self._inflight.back_at, time.monotonic() + FIRST_S)
        swept, verdicts = self._sort_out()
        self._admission.hold(verdicts)
        HOOKS.tell(swept)
        self.duties.maintain()
        self._leave_mark(now)

    def _leave_mark(self, now: float) -> None:
        """Say that somebody looked for due tasks: of a worker that has ended nothing else tells."""
        if now < self._mark_at:
            return
        self._mark_at = now + self._settings.renew_every.total_seconds()
        with self.child.database.begin() as connection:
            leader_lease.record_duty_without_lease(
                connection, leader_lease.SCAN, f"work {self.child.identity.owner}"
            )

    def _sort_out(self) -> tuple[list[Notice], list[AdmissionVerdict]]:
        """Sweep and park what is due and may not run; return what to tell, and whom to hold."""
        swept: list[Notice] = []
        verdicts: list[AdmissionVerdict] = []
        began, full = time.monotonic(), 0
        within, most = self._front.within(began), dict.fromkeys(self._queues, TIDY_AT_MOST)
        with self.child.database.begin() as connection:
            for found in find_due(connection, most, within=within):
                full += len(found.ids) == TIDY_AT_MOST
                rows = list(zip(found.ids, found.names, strict=True))
                tidied = triage_found(
                    connection, rows, found, self._known(connection, found), self._settings
                )
                swept += tidied.swept
                gated = [task_id for task_id, _ in tidied.ready if task_id in found.gated]
                verdicts.append(self._admission.judge(connection, gated))
        self._front.was_read(began, within, left=full)
        return swept, verdicts
