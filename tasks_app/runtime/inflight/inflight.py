"""The in-flight set: what one child has claimed, as its threads take and end it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf

from tasks_app.domain.tasks.run import ClaimedTask, Fence, Settlement
from tasks_app.runtime.handlers.active_run import ActiveRun, ReturnedClaim
from tasks_app.runtime.execution.in_flight import HeldClaims


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
