"""The claims that one child process holds, from the database's reply until their end is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf

from tasks_app.domain.handlers.settlement import BROKEN_OFF, OUTCOME_UNKNOWN, failed
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Fence, Settlement
from tasks_app.runtime.db.errors import PendingWrite, PendingWrites
from tasks_app.runtime.execution.waiting_claims import LONE_WAIT, OpenMessages, WaitingClaims
from tasks_app.runtime.handlers.active_run import ActiveRun, ReturnedClaim
from tasks_app.runtime.statistics import TASK_COUNTS


class HeldClaims:
    """The state of the in-flight set, and the housekeeper's part in it."""

    def __init__(
        self,
        threads: int = 1,
        *,
        extra: int = 0,
        places: int = 100,
        for_async_pool: Callable[[str], bool] = lambda _: False,
        ended: Callable[[Sequence[Fence]], bool] = lambda _: False,
    ) -> None:
        """``ended`` is told which runs are over, and tells whether the housekeeper has to know."""
        self._threads = threads
        self._extra = extra
        self._places = places
        self._tell_ended = ended
        self._mutex = threading.Lock()
        self._waiting = WaitingClaims(for_async_pool)
        self._running: dict[Fence, ActiveRun] = {}
        self._lone: Fence | None = None
        """The last task that had to run alone."""
        self._finished: dict[Fence, Settlement] = {}
        self._refused: dict[Fence, Settlement] = {}
        self._returning: dict[Fence, ReturnedClaim] = {}
        self._first_finished_at: float | None = None
        self._acquits_until = self.back_at = 0.0
        """Of :meth:`acquit`; when the last claim that went back for a while is due again."""
        self._lets_go = False
        self._messages = OpenMessages()
        self.pending_writes = PendingWrites()
        """What others left to the housekeeper."""
        self.stopping = threading.Event()
        """Set: start nothing more."""
        self.asked_at: float | None = None
        """When a signal asked this child to end. Signal handlers may write it: no lock is taken."""
        self.wake = threading.Event()
        """Tells the housekeeper that there is something to do."""
        self.stirred = threading.Event()
        """Set when a thread is free, a run has been written, or the child stops: the thread that
        claims from the pool looks again, and clears it."""
        self.arrived = threading.Condition(self._mutex)
        """Notified when tasks arrive, may start, or the child stops."""

    def write_later(self, pending_write: PendingWrite) -> None:
        """Hand a write to the housekeeper, which repeats it until it is answered."""
        self.pending_writes.add(pending_write)
        self.wake.set()

    def held(self) -> list[Fence]:
        """Return the fences to renew: everything that this child still answers for."""
        with self._mutex:
            waiting = (task.fence for task in self._waiting)
            return [
                *waiting,
                *self._running,
                *self._finished,
                *self._refused,
                *self._returning,
            ]

    def renewed(self, task_ids: frozenset[int], held_until: float) -> None:
        """The database has extended the leases of these, so that they are not over before that."""
        with self._mutex:
            self._waiting.renewed(task_ids, held_until)
            for run in self._running.values():  # some have not begun yet
                if run.task.task_id in task_ids:
                    run.held_until = max(run.held_until, held_until)

    def cancel(self, task_ids: frozenset[int]) -> None:
        """Tell running tasks that somebody wants them to stop."""
        with self._mutex:
            for run in self._running.values():
                if run.task.task_id in task_ids:
                    run.cancelled = True

    def running(self) -> list[ActiveRun]:
        with self._mutex:
            return list(self._running.values())

    def leave_unowned(self) -> None:
        """:meth:`leave` the runs whose thread is dead, or whose task in the event loop is over."""
        for run in self.running():
            if not run.owned():
                self.leave(run)

    def leave(self, run: ActiveRun) -> None:
        """Whoever carried out a run has left it: what nothing ended is not renewed for ever.

        It goes back. Of one that runs at most once nobody knows what it did.
        """
        task = run.task
        with self._mutex:
            if self._running.get(task.fence) is not run:
                return
            del self._running[task.fence]
            if task.at_most_once:
                cause = Cause(OUTCOME_UNKNOWN, "Something broke off its run.")
                self._finished[task.fence] = failed(task, cause)
                self._first_finished_at = self._first_finished_at or time.monotonic()
            else:
                self._returning[task.fence] = ReturnedClaim(task, LONE_WAIT, BROKEN_OFF)
            self.arrived.notify_all()
        log.error("task %s: nothing has ended its run; it is given back", task.task_id)
        TASK_COUNTS.happened(CountedOutcome.LEFT, name=task.name, queue=task.queue)
        self.stirred.set()
        self.wake.set()

    def runs(self, fence: Fence) -> bool:
        with self._mutex:
            return fence in self._running

    def finished(self) -> list[Settlement]:
        """Return the outcomes to write. They stay until they are dropped."""
        with self._mutex:
            self._first_finished_at = None
            return list(self._finished.values())

    def put_off(self, seconds: float) -> None:
        """Restart the clock of the outcomes that are left, ``seconds`` from now."""
        with self._mutex:
            if self._finished and self._first_finished_at is None:
                self._first_finished_at = time.monotonic() + seconds

    def oldest_finished_s(self) -> float | None:
        """Return how long the oldest outcome has waited, or None without any."""
        with self._mutex:
            first = self._first_finished_at
            return None if first is None else time.monotonic() - first

    def returning(self) -> list[ReturnedClaim]:
        """Return the claims to release. They stay until they are dropped."""
        with self._mutex:
            return list(self._returning.values())

    def acquit(self) -> None:
        """The database is away for everybody: suspect no run of it."""
        with self._mutex:
            self._acquits_until = time.monotonic() + ACQUITS_S
            for fence, item in self._returning.items():
                self._returning[fence] = replace(item, suspect="")

    def let_go(self, *, committing: bool = False) -> list[ClaimedTask]:
        """Take runs away from their threads, for ever; those that commit only if told so."""
        with self._mutex:
            self._lets_go = True
            taken = [run.task for run in self._running.values() if committing or not run.commits]
            for task in taken:
                del self._running[task.fence]
            return taken

    def take_back(self, longer_than_s: float) -> None:
        """If all threads have been busy for that long, give back what waits behind them.

        Of a pool's threads only those with a message count; without messages all do.
        """
        with self._mutex:
            now = time.monotonic()
            slow = [run for run in self._running.values() if now - run.since >= longer_than_s]
            in_async_pool = sum(run.in_async_pool for run in slow)
            busy_threads = len(slow) - in_async_pool
            if busy_threads >= (len(self._messages) or self._threads) + self._extra:
                self._return_waiting()
                return
            if slow:
                for task in self._waiting.take_turned_away():
                    self._returning[task.fence] = ReturnedClaim(task, LONE_WAIT)
            if in_async_pool >= self._places:
                self._messages.give_back()

    def take_named_back(self, names: Collection[str]) -> None:
        """Return what waits for these handlers: what they depend on is down."""
        with self._mutex:
            for task in self._waiting.take_named(names):
                self._returning[task.fence] = ReturnedClaim(task, timedelta(0))
        self.wake.set()

    def take_all_back(self) -> None:
        """Give back all that waits, because the child stops."""
        with self._mutex:
            for settlement in self._refused.values():
                if settlement.task is not None:
                    self._returning[settlement.fence] = ReturnedClaim(settlement.task, timedelta(0))
            self._refused.clear()
            self._return_waiting()

    def _return_waiting(self) -> None:
        for task in self._waiting.take_all():
            self._returning[task.fence] = ReturnedClaim(task, timedelta(0))
        self._messages.give_back()

    def idle_s(self) -> float:
        """Return for how long no message has been in any thread's hands; 0: one is."""
        with self._mutex:
            return self._messages.idle_s()

    @property
    def busy(self) -> bool:
        """Whether a thread of this child has a task or a message in hand."""
        with self._mutex:
            return bool(self._running or self._messages)

    @property
    def empty(self) -> bool:
        """Whether nothing waits, runs, or is still to be written."""
        with self._mutex:
            ours = self._running, self._finished, self._refused, self._returning
            return not (self._waiting or any(ours) or self.pending_writes.open)


class InFlight(HeldClaims):
    """All claims of one child whose reply has arrived."""

    def receive(self, tasks: Sequence[ClaimedTask], held_until: float = inf) -> None:
        """Put fresh claims in flight, whose leases are not over before that."""
        with self.arrived:
            self._waiting.add(tasks, held_until)
            self.arrived.notify_all()

    @property
    def threads(self) -> int:
        """How many threads may take tasks from here, the event loop's not counted."""
        return self._threads + self._extra

    @property
    def over(self) -> bool:
        """Whether nothing more may start."""
        return self.stopping.is_set() or self.asked_at is not None

    def start_next(self, suits: Callable[[ClaimedTask], bool] | None = None) -> ActiveRun | None:
        """Take the first waiting task that suits; None: there is none, or the child stops.

        A task that runs alone starts only when nothing else runs here, and nothing starts beside
        it: if it kills the process, it shall be the only suspect.
        """
        with self._mutex:
            if self.over or self._lone_runs:
                return None
            task = self._waiting.take_plain(suits, alone=not self._running)
            return None if task is None else self._begin(task)

    def start_async_pool(self, most: int) -> list[ActiveRun]:
        """Take up to ``most`` tasks for the event loop; lone ones as in :meth:`start_next`."""
        with self._mutex:
            if self.over or self._lone_runs:
                return []
            tasks = self._waiting.take_async(most, alone=not self._running)
            return [self._begin(task, in_async_pool=True) for task in tasks]

    def go_on(
        self, settlement: Settlement | None, suits: Callable[[ClaimedTask], bool]
    ) -> ActiveRun | None:
        """:meth:`collect` one outcome and start the first waiting task if it suits, in one step.

        What runs alone must not suit: something may run beside it.
        """
        with self._mutex:
            if settlement is not None:
                self._collect(settlement)
            plain = self._waiting.plain
            if plain and not self.over and not self._lone_runs:
                task = plain[0]
                if suits(task):
                    plain.popleft()
                    return self._begin(task)
            if self._waiting:  # what runs alone waits for this
                self.arrived.notify_all()
            return None

    def _begin(self, task: ClaimedTask, *, in_async_pool: bool = False) -> ActiveRun:
        fence = task[0]
        run = self._running[fence] = ActiveRun(
            task,
            time.monotonic(),
            task.cancel_requested,
            held_until=self._waiting.started(task),
            in_async_pool=in_async_pool,
        )
        if task.runs_alone:
            self._lone = fence
        return run

    @property
    def _lone_runs(self) -> bool:
        return self._lone is not None and self._lone in self._running

    @property
    def waits_for_async_pool(self) -> bool:
        return bool(self._waiting.asynchronous)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def await_turn(self, patience_s: float) -> bool:
        """Wait while tasks are in flight that may not start yet; False: nothing waits."""
        with self.arrived:
            if self._waiting and not self.stopping.is_set():
                self.arrived.wait(patience_s)
            return bool(self._waiting) and not self.stopping.is_set()

    def collect(self, settlement: Settlement) -> None:
        """Keep a run's outcome, to be written with others; nothing happens if it was let go."""
        with self._mutex:
            self._collect(settlement)
            if self._waiting:
                self.arrived.notify_all()

    def _collect(self, settlement: Settlement) -> None:
        fence = settlement[0]
        if self._running.pop(fence, None) is None and self._lets_go:
            return
        self._finished[fence] = settlement
        if not self._waiting.plain:
            self.stirred.set()
        self._start_clock()

    def _start_clock(self) -> None:
        if self._first_finished_at is None:
            self._first_finished_at = time.monotonic()
            self.wake.set()

    def amend(self, settlement: Settlement) -> None:
        """Keep this in the place of the outcome that is to be written."""
        with self._mutex:
            if settlement.fence in self._finished:
                self._finished[settlement.fence] = settlement

    def refuse(self, settlement: Settlement) -> None:
        """It could not be written beside others; a child that stops gives the task back instead."""
        task = settlement.task
        assert task is not None  # noqa: S101  it came from a run
        with self._mutex:
            if self._finished.pop(task.fence, None) is None:
                return
            if self.over:
                self._returning[task.fence] = ReturnedClaim(task, timedelta(0))
            else:
                self._refused[task.fence] = settlement
        self.stirred.set()

    def start_refused(self, before: ActiveRun | None = None) -> ActiveRun | None:
        """Take the first outcome that is to be written alone; its handler has returned.

        ``before``: a run that was started and has not begun, so that it harms none even if it is to
        run alone.
        """
        with self._mutex:
            lone_runs = self._lone_runs and self._lone != (before and before.task.fence)
            if self.over or lone_runs or not self._refused:
                return None
            settlement = self._refused.pop(next(iter(self._refused)))
            assert settlement.task is not None  # noqa: S101  see above
            run = self._begin(settlement.task)
            run.returned = settlement
            return run

    def drop(self, *fences: Fence) -> None:
        """The database answered for these runs, or they are no longer ours.

        Only these runs are dropped: once one is answered, its task's next run may be in flight.
        """
        with self._mutex:
            for fence in fences:
                self._ended(fence)
                self._finished.pop(fence, None)
                self._returning.pop(fence, None)
        self.stirred.set()
        if self._tell_ended(fences):
            self.wake.set()

    def give_back(self, task: ClaimedTask, wait: timedelta, *, suspect: str = "") -> None:
        """Let a running task go, uncharged; the housekeeper releases it until that is answered.

        ``suspect``: what befell it, perhaps by its own fault.
        """
        with self._mutex:
            if self._was_let_go(task.fence):
                return
            if time.monotonic() < self._acquits_until:
                suspect = ""
            self._ended(task.fence)
            self._returning[task.fence] = ReturnedClaim(task, wait, suspect)
        self.wake.set()

    def begin_commit(self, fence: Fence) -> bool:
        """Announce that a run is about to be written for good; False: it was let go meanwhile."""
        with self._mutex:
            if self._was_let_go(fence):
                return False
            if fence in self._running:
                self._running[fence].commits = True
            return True

    def _was_let_go(self, fence: Fence) -> bool:
        return self._lets_go and fence not in self._running

    def _ended(self, fence: Fence) -> None:
        if self._running.pop(fence, None) is not None and self._waiting:
            self.arrived.notify_all()

    def open_message(self) -> None:
        """Start with a message in this thread."""
        with self._mutex:
            self._messages.open()

    def close_message(self) -> None:
        with self._mutex:
            self._messages.close()

    @property
    def gave_back(self) -> bool:
        """Whether the housekeeper gave the rest of this thread's message back."""
        return self._messages.gave_back

    def stop(self) -> None:
        """Start nothing more, and wake every waiting thread. The housekeeper says it often."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self.stirred.set()
        self.wake.set()
        with self.arrived:
            for run in self._running.values():
                run.stops = True
            self.arrived.notify_all()


log = quiet_logger(__name__)
ACQUITS_S = 2.0
"""A run that loses its connection so soon after others did is not suspected, either."""
