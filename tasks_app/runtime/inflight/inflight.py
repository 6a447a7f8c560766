"""The in-flight set: what one child holds, shared by its threads and its housekeeper.

A claim in flight is *waiting* (claimed, not started), *running*, *finished* (its outcome
waits to be written) or *returning* (on its way back to the pool). Until the database has answered,
all four are renewed. One mutex decides who owns a task: what the housekeeper took back, no thread
starts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf

from tasks_app.domain.tasks.run import ClaimedTask, Fence, Settlement
from tasks_app.runtime.db.pending_writes import PendingWrite, PendingWrites
from tasks_app.runtime.handlers.active_run import ActiveRun, ReturnedClaim
from tasks_app.runtime.inflight.open_messages import InHand

LONE_WAIT = timedelta(seconds=5)
"""How long a task that runs alone stays away from a child in which others run on and on."""
MOST_TURNED_AWAY = 3
"""So often; then the child starts nothing more until that task has had its turn."""
MOST_REMEMBERED = 1_000
ACQUITS_S = 2.0
"""Whose connection is lost so soon after others is not suspected, either."""


class InFlight:
    """All claims of one child whose reply has arrived."""

    def __init__(  # noqa: PLR0915  all that a child holds
        self,
        threads: int = 1,
        *,
        extra: int = 0,
        places: int = 100,
        for_async_pool: Callable[[ClaimedTask], bool] = lambda _: False,
        ended: Callable[[Sequence[Fence]], bool] = lambda _: False,
    ) -> None:
        """``ended`` is told which runs are over, and tells whether the housekeeper has to know."""
        self._threads = threads
        self._extra = extra
        self._places = places
        self._mutex = threading.Lock()
        self._for_async_pool = for_async_pool
        self._tell_ended = ended
        self._waiting: deque[ClaimedTask] = deque()
        self._async_waiting: deque[ClaimedTask] = deque()
        """What waits for the event loop; the others wait for a thread."""
        self._held_until: dict[Fence, float] = {}
        """Of those that wait: see :class:`ActiveRun`."""
        self._running: dict[Fence, ActiveRun] = {}
        self._lone: Fence | None = None
        self._turned_away: dict[int, int] = {}
        self._finished: dict[Fence, Settlement] = {}
        self._returning: dict[Fence, ReturnedClaim] = {}
        self.pending_writes = PendingWrites()
        """What others left to the housekeeper."""
        self._acquits_until = 0.0
        self._first_finished_at: float | None = None
        self._in_hand = InHand()
        self._lets_go = False
        self.stopping = threading.Event()
        """Set: start nothing more."""
        self.asked_at: float | None = None
        """When a signal asked this child to end. Signal handlers may write it: no lock is taken."""
        self.wake = threading.Event()
        """Tells the housekeeper that there is something to do."""
        self.stirred = threading.Event()
        """Set when hands become free, a run has been written, or the child stops: who claims from
        the pool looks again. It clears it."""
        self.arrived = threading.Condition(self._mutex)
        """Notified when tasks arrive, may start, or the child stops."""

    def receive(self, tasks: Sequence[ClaimedTask], held_until: float = inf) -> None:
        """Put fresh claims in flight, whose leases are not over before that."""
        with self.arrived:
            for task in tasks:
                self._line(task).append(task)
                self._held_until[task[0]] = held_until
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
            for task in self._waiting:
                if task.runs_alone and self._running:
                    continue
                if suits is None or suits(task):
                    self._waiting.remove(task)
                    return self._begin(task)
            return None

    def start_async_pool(self, most: int) -> list[ActiveRun]:
        """Take up to so many waiting tasks for the event loop; alone as above."""
        with self._mutex:
            if self.over or not self._async_waiting or self._lone_runs:
                return []
            chosen = [task for task in self._async_waiting if not task.runs_alone][:most]
            if not chosen and not self._running:
                chosen = [self._async_waiting[0]]
            fences = {task.fence for task in chosen}
            if fences:
                self._async_waiting = deque(t for t in self._async_waiting if t.fence not in fences)
            return [self._begin(task, in_async_pool=True) for task in chosen]

    def _begin(self, task: ClaimedTask, *, in_async_pool: bool = False) -> ActiveRun:
        fence = task[0]
        held_until = self._held_until.pop(fence, inf)
        run = ActiveRun(
            task,
            time.monotonic(),
            task.cancel_requested,
            held_until=held_until,
            in_async_pool=in_async_pool,
        )
        self._running[fence] = run
        if task.runs_alone:
            self._lone = task.fence
            self._turned_away.pop(task.task_id, None)
        return run

    @property
    def _lone_runs(self) -> bool:
        return self._lone is not None and self._lone in self._running

    def _line(self, task: ClaimedTask) -> deque[ClaimedTask]:
        return self._async_waiting if self._for_async_pool(task) else self._waiting

    def _all_waiting(self) -> list[ClaimedTask]:
        return [*self._waiting, *self._async_waiting]

    @property
    def waits_for_async_pool(self) -> bool:
        """Whether an async task has not started."""
        return bool(self._async_waiting)

    @property
    def waiting(self) -> int:
        """How many claims have not started."""
        return len(self._waiting) + len(self._async_waiting)

    def await_turn(self, patience_s: float) -> bool:
        """Wait while tasks are in flight that may not start yet; False: nothing waits."""
        with self.arrived:
            if self.waiting and not self.stopping.is_set():
                self.arrived.wait(patience_s)
            return bool(self.waiting) and not self.stopping.is_set()

    def collect(self, settlement: Settlement) -> None:
        """A run ended; its outcome waits for company. Nothing happens if it was let go."""
        with self._mutex:
            self._collect(settlement)
            if self.waiting:
                self.arrived.notify_all()

    def _collect(self, settlement: Settlement) -> None:
        fence = settlement.fence
        if self._running.pop(fence, None) is None and self._lets_go:
            return
        self._finished[fence] = settlement
        if not self._waiting:
            self.stirred.set()
        if self._first_finished_at is None:
            self._first_finished_at = time.monotonic()
            self.wake.set()

    def go_on(
        self, settlement: Settlement | None, suits: Callable[[ClaimedTask], bool]
    ) -> ActiveRun | None:
        """:meth:`collect` one outcome and start the next task, if that is one that suits.

        In one step, for who does both a hundred times in a moment. None: see :meth:`start_next`.
        """
        with self._mutex:
            if settlement is not None:
                self._collect(settlement)
            waiting = self._waiting
            if waiting and not self.over and not self._lone_runs:
                task = waiting[0]
                if not task.runs_alone and suits(task):
                    waiting.popleft()
                    return self._begin(task)
            if self.waiting:  # what runs alone waits for this
                self.arrived.notify_all()
            return None

    def drop(self, *fences: Fence) -> None:
        """The database answered for these runs, or they are no longer ours.

        Of these runs only: once one is answered, its task's next run may be in flight already.
        """
        with self._mutex:
            for fence in fences:
                self._ended(fence)
                self._finished.pop(fence, None)
                self._returning.pop(fence, None)
        self.stirred.set()
        if self._tell_ended(fences):
            self.wake.set()

    def give_back(self, task: ClaimedTask, wait: timedelta, *, suspect: bool = False) -> None:
        """Let a running task go, uncharged; the housekeeper releases it until that is answered."""
        with self._mutex:
            if self._was_let_go(task.fence):
                return
            suspect = suspect and time.monotonic() >= self._acquits_until
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

    def let_go(self, *, committing: bool = False) -> list[ClaimedTask]:
        """Take runs away from their threads, for ever; such as are being committed if told so."""
        with self._mutex:
            self._lets_go = True
            taken = [run.task for run in self._running.values() if committing or not run.commits]
            for task in taken:
                del self._running[task.fence]
            return taken

    def _was_let_go(self, fence: Fence) -> bool:
        return self._lets_go and fence not in self._running

    def acquit(self) -> None:
        """The database is away for everybody: suspect nobody of it."""
        with self._mutex:
            self._acquits_until = time.monotonic() + ACQUITS_S
            for fence, item in self._returning.items():
                self._returning[fence] = replace(item, suspect=False)

    def _ended(self, fence: Fence) -> None:
        if self._running.pop(fence, None) is not None and self.waiting:
            self.arrived.notify_all()

    def write_later(self, pending_write: PendingWrite) -> None:
        """Hand something to the housekeeper that has to be done until it is answered."""
        self.pending_writes.add(pending_write)
        self.wake.set()

    def open_message(self, dispatch_id: int) -> None:
        """Start with a message in this thread; 0: a hint, which the ledger does not know."""
        with self._mutex:
            self._in_hand.open(dispatch_id)

    def close_message(self) -> None:
        """This thread's message is worked off."""
        with self._mutex:
            self._in_hand.close()

    def idle_s(self) -> float:
        """Return for how long no message has been in any thread's hands; 0: one is."""
        with self._mutex:
            return self._in_hand.idle_s()

    @property
    def gave_back(self) -> bool:
        """Whether the housekeeper gave the rest of this thread's message back."""
        return self._in_hand.gave_back

    def take_back(self, longer_than_s: float) -> list[int]:
        """If all hands are busy for so long, return all that waits; give their messages.

        Of a pool's threads only those with a message look; without messages all do.
        """
        with self._mutex:
            now = time.monotonic()
            slow = [run for run in self._running.values() if now - run.since >= longer_than_s]
            aboard = sum(run.in_async_pool for run in slow)
            if len(slow) - aboard >= (len(self._in_hand) or self._threads) + self._extra:
                return self._return_waiting()
            if slow:
                self._turn_away_the_lone()
            return self._in_hand.give_back() if aboard >= self._places else []

    def _turn_away_the_lone(self) -> None:
        """What runs alone waits for all: perhaps others are free. At last it has its turn here."""
        for task in [task for task in self._all_waiting() if task.runs_alone]:
            times = self._turned_away.get(task.task_id, 0)
            if times < MOST_TURNED_AWAY:
                if len(self._turned_away) >= MOST_REMEMBERED:
                    self._turned_away.clear()
                self._turned_away[task.task_id] = times + 1
                self._line(task).remove(task)
                self._held_until.pop(task.fence, None)
                self._returning[task.fence] = ReturnedClaim(task, LONE_WAIT)

    def take_all_back(self) -> list[int]:
        """Return all that waits, because the child stops; give the messages in hand."""
        with self._mutex:
            return self._return_waiting()

    def _return_waiting(self) -> list[int]:
        for task in self._all_waiting():
            self._returning[task.fence] = ReturnedClaim(task, timedelta(0))
        self._waiting.clear()
        self._async_waiting.clear()
        self._held_until.clear()
        return self._in_hand.give_back()

    def returning(self) -> list[ReturnedClaim]:
        """Return the claims to release. They stay until :meth:`drop`."""
        with self._mutex:
            return list(self._returning.values())

    def finished(self) -> list[Settlement]:
        """Return the outcomes to write. They stay until :meth:`drop`."""
        with self._mutex:
            self._first_finished_at = None
            return list(self._finished.values())

    def put_off(self, seconds: float) -> None:
        """Start the clock of outcomes that are left again, so many seconds from now."""
        with self._mutex:
            if self._finished and self._first_finished_at is None:
                self._first_finished_at = time.monotonic() + seconds

    def oldest_finished_s(self) -> float | None:
        """Return how long the oldest outcome has waited, or None without any."""
        with self._mutex:
            first = self._first_finished_at
            return None if first is None else time.monotonic() - first

    def held(self) -> list[Fence]:
        """Return the fences to renew: everything that this child still answers for."""
        with self._mutex:
            waiting = [task.fence for task in self._all_waiting()]
            running = [run.task.fence for run in self._running.values()]
            finished = [settlement.fence for settlement in self._finished.values()]
            returning = [item.fence for item in self._returning.values()]
            return waiting + running + finished + returning

    def renewed(self, task_ids: frozenset[int], held_until: float) -> None:
        """The database has extended the leases of these, so that they are not over before that."""
        with self._mutex:
            for fence, known in self._held_until.items():
                if fence.task_id in task_ids:
                    self._held_until[fence] = max(known, held_until)
            for run in self._running.values():  # such as have not begun yet
                if run.task.task_id in task_ids:
                    run.held_until = max(run.held_until, held_until)

    def running(self) -> list[ActiveRun]:
        """Return what runs now."""
        with self._mutex:
            return list(self._running.values())

    def cancel(self, task_ids: frozenset[int]) -> None:
        """Tell running tasks that somebody wants them to stop."""
        with self._mutex:
            for run in self._running.values():
                if run.task.task_id in task_ids:
                    run.cancelled = True

    def runs(self, fence: Fence) -> bool:
        """Whether this run is in a thread's hands."""
        with self._mutex:
            return fence in self._running

    @property
    def busy(self) -> bool:
        """Whether a thread of this child has a task or a message in hand."""
        with self._mutex:
            return bool(self._running or self._in_hand)

    @property
    def empty(self) -> bool:
        """Whether nothing waits, runs, or is still to be written."""
        with self._mutex:
            claims = (
                self._waiting,
                self._async_waiting,
                self._running,
                self._finished,
                self._returning,
            )
            return not (any(claims) or self.pending_writes.open)

    def stop(self) -> None:
        """Start nothing more, and wake everybody who waits. Once: the housekeeper says it often."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self.stirred.set()
        self.wake.set()
        with self.arrived:
            for run in self._running.values():
                run.stops = True
            self.arrived.notify_all()
