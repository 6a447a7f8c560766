"""The claims that one child process holds, from the database's reply until their end is written."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from math import inf
from types import MappingProxyType

from tasks_app.domain.handlers.settlement import ABORTED, OUTCOME_UNKNOWN, settle_failure
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Fence, Settlement
from tasks_app.runtime.db.errors import PendingWrite, PendingWrites
from tasks_app.runtime.execution.claim_states import (
    CLAIM_TRANSITIONS,
    ClaimEvent,
    ClaimState,
    HeldClaim,
)
from tasks_app.runtime.handlers.checkpoint import ActiveRun
from tasks_app.runtime.statistics import TASK_COUNTS

log = quiet_logger(__name__)
WAITING, RUNNING, COMMITTING, FINISHED, SEPARATE, RETURNING = ClaimState
START, COMMIT, RUN_AGAIN, COLLECT, SPLIT_OFF, RETURN, DISOWN, ANSWER = ClaimEvent
EXCLUSIVE_WAIT = timedelta(seconds=5)
"""How long an exclusive task stays away from a child that always runs others."""
MOST_TURNED_AWAY = 3  # then the child starts nothing more until that task has had its turn
MOST_REMEMBERED = 1_000
OUTAGE_GRACE_S = 2.0
"""A run that loses its connection so soon after others did is not charged with a crash either."""


class InFlight:
    """All claims of one child. Its mutex decides which thread owns a task."""

    def __init__(
        self,
        threads: int = 1,
        *,
        extra: int = 0,
        places: int = 100,
        for_async_pool: Callable[[str], bool] = lambda _: False,
        at_once: Mapping[str, int] = MappingProxyType({}),
        ended: Callable[[Sequence[Fence]], bool] = lambda _: False,
    ) -> None:
        """``at_once``: of bulk handlers by name, how many tasks one call takes.

        ``ended`` gets the runs that are over, and returns whether the housekeeper is to wake.
        """
        self.threads = threads + extra
        """How many threads may take tasks from here, the event loop's not counted."""
        self._message_threads, self._extra = threads, extra
        self._places = places
        self._for_async_pool = for_async_pool
        self._at_once = at_once
        self.of_one_call = 1
        """How many tasks of those that came last one call takes, if they are a bulk handler's."""
        self._note_ended = ended
        self._mutex = threading.Lock()
        self._claims: dict[Fence, HeldClaim] = {}
        self._in: dict[ClaimState, dict[HeldClaim, None]] = {state: {} for state in ClaimState}
        """The same by state, in the order in which they came to it."""
        self._for_threads: deque[HeldClaim] = deque()
        self._for_loop: deque[HeldClaim] = deque()  # WAITING, in the order of the claim
        self._exclusive: HeldClaim | None = None  # the last one started that had to run alone
        self._turned_away: dict[int, int] = {}  # how often each exclusive task was sent away
        self._in_message: set[int] = set()  # the threads that carry out a message
        self._gave_back: set[int] = set()  # of these, whose message's rest went back
        self._no_message_since = time.monotonic()
        self._first_finished_at: float | None = None
        self._outage_until = 0.0
        self.back_at = 0.0  # when the last claim that went back for a while is due again
        self.pending_writes = (
            PendingWrites()
        )  # the housekeeper repeats them until they are answered
        self.stopping = threading.Event()  # set: start nothing more
        self.stop_requested_at: float | None = None
        """When a signal asked this child to end. Signal handlers may write it: no lock is taken."""
        self.housekeeper_wake = threading.Event()
        self.claimer_wake = threading.Event()
        """For the thread that claims from the pool: a thread is free, a run has been written, or
        the child stops. That thread clears it."""
        self.startable = threading.Condition(self._mutex)
        """Notified when tasks arrive, may start, or the child stops."""

    def _move(self, claim: HeldClaim, event: ClaimEvent) -> bool:
        """Change the state of a claim, under the mutex; False: the table has no such move.

        If the table has None, the caller takes the claim out of ``_claims``.
        """
        try:
            after = CLAIM_TRANSITIONS[claim.state, event]
        except KeyError:
            return False
        del self._in[claim.state][claim]
        if after is not None:
            claim.state = after
            self._in[after][claim] = None
        return True

    # What the threads that run tasks call, in the order of a run

    def receive(self, tasks: Sequence[ClaimedTask], held_until: float = inf) -> None:
        with self._mutex:
            waiting = self._in[WAITING]
            for task in tasks:
                claim = self._claims[task[0]] = HeldClaim(task, held_until)
                waiting[claim] = None
                queue = self._for_loop if self._for_async_pool(task.name) else self._for_threads
                queue.append(claim)
            if self._at_once and tasks:
                self.of_one_call = max(self._at_once.get(task.name, 1) for task in tasks)
            self.startable.notify_all()

    def start_next(self, suits: Callable[[ClaimedTask], bool] | None = None) -> ActiveRun | None:
        """Take the first waiting task that suits; None: there is none, or the child stops.

        An exclusive task starts only when nothing else runs here, and nothing starts beside it: if
        it kills the process, it alone can be the cause.
        """
        with self._mutex:
            if self.over or self._exclusive_runs:
                return None
            alone = not self._runs
            for claim in self._for_threads:
                task = claim.task
                if (alone or not task.runs_alone) and (suits is None or suits(task)):
                    self._for_threads.remove(claim)
                    return self._start_with_others(claim, self._for_threads)
            return None

    def start_async_pool(self, most: int) -> list[ActiveRun]:
        """Take up to ``most`` tasks for the event loop, or an exclusive one if nothing runs."""
        with self._mutex:
            if self.over or self._exclusive_runs:
                return []
            chosen = [claim for claim in self._for_loop if not claim.task.runs_alone][:most]
            if not chosen and not self._runs:
                chosen = list(self._for_loop)[:1]
            runs = [
                self._start_with_others(claim, self._for_loop, in_async_pool=True)
                for claim in chosen
                if claim.state is WAITING  # else the call of one before it takes it along
            ]
            if runs:
                self._forget_what_left_the_queues()
            return runs

    def _start_with_others(
        self, claim: HeldClaim, queue: deque[HeldClaim], *, in_async_pool: bool = False
    ) -> ActiveRun:
        """Start a claim, and with it the others that one call of its bulk handler takes.

        Exclusive tasks, and those with limits of their own, are called alone.
        """
        run, first = self._start(claim, in_async_pool=in_async_pool), claim.task
        most = self._at_once.get(first.name, 1)
        if most > 1 and _may_share(first):
            like = (c for c in queue if c.state is WAITING and c.task.name == first.name)
            others = list(islice((c for c in like if _may_share(c.task)), most - 1))
            run.others = [self._start(c, in_async_pool=in_async_pool) for c in others]
            for other in run.others:
                other.place = run.place
            self._forget_what_left_the_queues()
        return run

    def _start(self, claim: HeldClaim, *, in_async_pool: bool = False) -> ActiveRun:
        self._move(claim, START)
        task = claim.task
        claim.run = run = ActiveRun(
            task,
            time.monotonic(),
            task.cancel_requested,
            held_until=claim.held_until,
            in_async_pool=in_async_pool,
        )
        if task.runs_alone:
            self._exclusive = claim
            self._turned_away.pop(task.task_id, None)
        return run

    @property
    def _runs(self) -> bool:
        return bool(self._in[RUNNING] or self._in[COMMITTING])

    @property
    def _exclusive_runs(self) -> bool:
        claim = self._exclusive
        return claim is not None and (claim in self._in[RUNNING] or claim in self._in[COMMITTING])

    def _running_claims(self) -> list[HeldClaim]:
        return [*self._in[COMMITTING], *self._in[RUNNING]]

    def collect(self, settlement: Settlement) -> None:
        """Keep a run's outcome, to be written with others, unless the run was disowned."""
        with self._mutex:
            self._collect(settlement)
            if self._in[WAITING]:
                self.startable.notify_all()

    def collect_and_start_next(
        self, settlement: Settlement | None, suits: Callable[[ClaimedTask], bool]
    ) -> ActiveRun | None:
        """:meth:`collect` one outcome and start the first waiting task if it suits, in one step.

        An exclusive task must not suit: something may run beside it.
        """
        with self._mutex:
            if settlement is not None:
                self._collect(settlement)
            waiting = self._for_threads
            if waiting and not self.over and not self._exclusive_runs:
                claim = waiting[0]
                if suits(claim.task):
                    waiting.popleft()
                    return self._start(claim)
            if self._in[WAITING]:  # an exclusive one waits for this
                self.startable.notify_all()
            return None

    def _collect(self, settlement: Settlement) -> None:
        claim = self._claims.get(settlement[0])
        if claim is None or not self._move(claim, COLLECT):
            return
        claim.settlement, claim.run = settlement, None  # each run kept would cost the collector
        if not self._for_threads:
            self.claimer_wake.set()
        if self._first_finished_at is None:
            self._first_finished_at = time.monotonic()
            self.housekeeper_wake.set()

    def begin_commit(self, fence: Fence) -> bool:
        """Announce that a run is about to commit; False: it was disowned meanwhile."""
        return self._happens(fence, COMMIT)

    def run_again(self, fence: Fence) -> bool:
        return self._happens(fence, RUN_AGAIN)

    def _happens(self, fence: Fence, event: ClaimEvent) -> bool:
        with self._mutex:
            claim = self._claims.get(fence)
            return claim is not None and self._move(claim, event)

    def give_back(self, task: ClaimedTask, wait: timedelta, *, crash: str = "") -> None:
        """Let a running task go; the housekeeper repeats its release until that is answered.

        ``crash``: why its attempt is charged with a crash; empty: it is not.
        """
        with self._mutex:
            claim = self._claims.get(task.fence)
            if claim is None:
                return
            if time.monotonic() < self._outage_until:
                crash = ""
            self._return([claim], wait, crash)
            if self._in[WAITING]:
                self.startable.notify_all()
        self.housekeeper_wake.set()

    def _return(
        self, claims: Iterable[HeldClaim], wait: timedelta = timedelta(0), crash: str = ""
    ) -> None:
        for claim in claims:
            if self._move(claim, RETURN):
                claim.wait, claim.crash = wait, crash

    def return_unended(self, run: ActiveRun) -> None:
        """Return a run that its thread left unended: it would be renewed for ever.

        The outcome of one that runs at most once is unknown.
        """
        for other in run.others:
            self.return_unended(other)
        task = run.task
        with self._mutex:
            claim = self._claims.get(task.fence)
            if claim is None or claim.run is not run or claim.state not in {RUNNING, COMMITTING}:
                return
            if task.at_most_once:
                cause = Cause(OUTCOME_UNKNOWN, "Something broke off its run.")
                self._collect(settle_failure(task, cause))
            else:
                self._return([claim], EXCLUSIVE_WAIT, ABORTED)
            self.startable.notify_all()
        log.error("task %s: nothing has ended its run; it is given back", task.task_id)
        TASK_COUNTS.happened(CountedOutcome.LEFT, name=task.name, queue=task.queue)
        self.claimer_wake.set()
        self.housekeeper_wake.set()

    def is_running(self, fence: Fence) -> bool:
        with self._mutex:
            claim = self._claims.get(fence)
            return claim is not None and claim.state in {RUNNING, COMMITTING}

    # What the settler calls

    def finished(self) -> list[Settlement]:
        """Return the outcomes to write. They stay until they are dropped."""
        with self._mutex:
            self._first_finished_at = None
            return [claim.settlement for claim in self._in[FINISHED] if claim.settlement]

    def restart_clock(self, seconds: float) -> None:
        """Let the outcomes that are left wait from ``seconds`` after now."""
        with self._mutex:
            if self._in[FINISHED] and self._first_finished_at is None:
                self._first_finished_at = time.monotonic() + seconds

    def amend(self, settlement: Settlement) -> None:
        with self._mutex:
            claim = self._claims.get(settlement.fence)
            if claim is not None and claim.state is FINISHED:
                claim.settlement = settlement

    def split_off(self, settlement: Settlement) -> None:
        """Let a run of its own commit an outcome; a child that stops gives the task back."""
        with self._mutex:
            claim = self._claims.get(settlement.fence)
            if claim is None or claim.state is not FINISHED:
                return
            if self.over:
                self._return([claim])
            else:
                self._move(claim, SPLIT_OFF)
        self.claimer_wake.set()

    def start_separate(self, before: ActiveRun | None = None) -> ActiveRun | None:
        """Take the first outcome that needs a run of its own; its handler has returned.

        ``before``: a run that was started and has not begun, so that it harms none even if it is
        exclusive.
        """
        with self._mutex:
            if self.over or not self._in[SEPARATE]:
                return None
            exclusive = self._exclusive
            if exclusive and exclusive.run is not before and self._exclusive_runs:
                return None
            claim = next(iter(self._in[SEPARATE]))
            run = self._start(claim)
            run.returned = claim.settlement
            return run

    def drop(self, *fences: Fence) -> None:
        """Forget these runs, whose outcome is answered, or which are no longer ours.

        Not others of their tasks: the next run may be in flight by now.
        """
        with self._mutex:
            for fence in fences:
                claim = self._claims.pop(fence, None)
                if claim is not None and not self._move(claim, ANSWER):
                    self._claims[fence] = claim
            if self._in[WAITING]:
                self.startable.notify_all()
        self.claimer_wake.set()
        if self._note_ended(fences):
            self.housekeeper_wake.set()

    # What the housekeeper calls

    def write_later(self, pending_write: PendingWrite) -> None:
        self.pending_writes.add(pending_write)
        self.housekeeper_wake.set()

    def held(self) -> list[Fence]:
        """Return the fences to renew: all that this child is still responsible for."""
        with self._mutex:
            return list(self._claims)

    def renewed(self, task_ids: frozenset[int], held_until: float) -> None:
        """Note that the database has extended the leases of these tasks."""
        with self._mutex:
            for claim in self._claims.values():
                if claim.task.task_id in task_ids:
                    claim.held_until = max(claim.held_until, held_until)
                    if claim.run is not None:  # some have not begun yet
                        claim.run.held_until = claim.held_until

    def running(self) -> list[ActiveRun]:
        with self._mutex:
            return [claim.run for claim in self._running_claims() if claim.run]

    def return_unowned(self) -> None:
        """Return the runs whose thread is dead, or whose task in the event loop is over."""
        for run in self.running():
            if not run.owned():
                self.return_unended(run)

    def oldest_finished_s(self) -> float | None:
        with self._mutex:
            first = self._first_finished_at
            return None if first is None else time.monotonic() - first

    def returning(self) -> list[HeldClaim]:
        """Return the claims to release. They stay until they are dropped."""
        with self._mutex:
            return list(self._in[RETURNING])

    def note_outage(self) -> None:
        """The database is away for all: charge no run with the loss of its connection."""
        with self._mutex:
            self._outage_until = time.monotonic() + OUTAGE_GRACE_S
            for claim in self._in[RETURNING]:
                claim.crash = ""

    def take_back(self, longer_than_s: float) -> None:
        """If all threads have been busy for that long, give back what waits behind them.

        In a pool only the threads with a message count; without messages all do.
        """
        with self._mutex:
            now = time.monotonic()
            slow = [
                c.run
                for c in self._running_claims()
                if c.run and now - c.run.since >= longer_than_s
            ]
            in_async_pool = len({run.place for run in slow if run.in_async_pool})
            busy_threads = len({run.place for run in slow}) - in_async_pool
            if busy_threads >= (len(self._in_message) or self._message_threads) + self._extra:
                self._return_waiting()
                return
            if slow:
                self._turn_away()
            if in_async_pool >= self._places:
                self._gave_back |= self._in_message

    def _turn_away(self) -> None:
        """Return exclusive tasks, as other children may be free; one that was often stays here."""
        for claim in [claim for claim in self._in[WAITING] if claim.task.runs_alone]:
            task_id = claim.task.task_id
            times = self._turned_away.get(task_id, 0)
            if times < MOST_TURNED_AWAY:
                if len(self._turned_away) >= MOST_REMEMBERED:
                    self._turned_away.clear()
                self._turned_away[task_id] = times + 1
                self._return([claim], EXCLUSIVE_WAIT)
        self._forget_what_left_the_queues()

    def take_named_back(self, names: Collection[str]) -> None:
        """Return what waits for these handlers: what they depend on is down."""
        with self._mutex:
            self._return([c for c in self._in[WAITING] if c.task.name in names])
            self._forget_what_left_the_queues()
        self.housekeeper_wake.set()

    def take_all_back(self) -> None:
        with self._mutex:
            self._return(list(self._in[SEPARATE]))
            self._return_waiting()

    def _return_waiting(self) -> None:
        self._return(list(self._in[WAITING]))
        self._forget_what_left_the_queues()
        self._gave_back |= self._in_message

    def _forget_what_left_the_queues(self) -> None:
        for queue in (self._for_threads, self._for_loop):
            waiting = [claim for claim in queue if claim.state is WAITING]
            if len(waiting) < len(queue):
                queue.clear()
                queue.extend(waiting)

    def stop(self) -> None:
        """Start nothing more, and wake every waiting thread. The housekeeper calls it often."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self.claimer_wake.set()
        self.housekeeper_wake.set()
        with self._mutex:
            for claim in self._running_claims():
                if claim.run is not None:
                    claim.run.stops = True
            self.startable.notify_all()

    def disown(self, *, committing: bool = False) -> list[ClaimedTask]:
        """Take runs away from their threads for good, those that commit only if ``committing``."""
        with self._mutex:
            claims = self._running_claims() if committing else list(self._in[RUNNING])
            for claim in claims:
                self._move(claim, DISOWN)
                del self._claims[claim.fence]
            return [claim.task for claim in claims]

    # What anyone asks

    @property
    def over(self) -> bool:
        return self.stopping.is_set() or self.stop_requested_at is not None

    @property
    def waits_for_async_pool(self) -> bool:
        return bool(self._for_loop)

    @property
    def waiting(self) -> int:
        return len(self._in[WAITING])

    def await_turn(self, patience_s: float) -> bool:
        """Wait while tasks are in flight that may not start yet; False: nothing waits."""
        with self._mutex:
            if self.waiting and not self.stopping.is_set():
                self.startable.wait(patience_s)
            return bool(self.waiting) and not self.stopping.is_set()

    @property
    def busy(self) -> bool:
        """Whether a thread of this child has a task or a message in hand."""
        with self._mutex:
            return self._runs or bool(self._in_message)

    @property
    def empty(self) -> bool:
        """Whether nothing waits, runs, or is still to be written."""
        with self._mutex:
            return not (self._claims or self.pending_writes.open)

    def open_message(self) -> None:
        with self._mutex:
            self._in_message.add(threading.get_ident())
            self._gave_back.discard(threading.get_ident())

    def close_message(self) -> None:
        with self._mutex:
            self._in_message.discard(threading.get_ident())
            self._no_message_since = time.monotonic()

    @property
    def gave_back(self) -> bool:
        """Whether the housekeeper gave the rest of this thread's message back to the next scan."""
        return threading.get_ident() in self._gave_back

    def idle_s(self) -> float:
        """Return for how long no thread has carried out a message; 0: one does."""
        with self._mutex:
            return 0.0 if self._in_message else time.monotonic() - self._no_message_since


def _may_share(task: ClaimedTask) -> bool:
    """Whether one call may run it beside others."""
    return not task.runs_alone and task.timeout_ms is None and task.hard_timeout_ms is None
