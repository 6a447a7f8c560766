"""The executor: carries out messages, and keeps all of its child busy meanwhile.

Three things carry out tasks of the in-flight set: this thread, the child's further threads, and its
event loop. What they do not get from the message they get from the pool.

The way of a task through this room, in order: `executor` (the loop of a child), `claims`,
`in_flight` (what the child holds), `runner`, `invocation` (the call of the handler), `completion`
(which end follows), `settler` (writes ends). `pools` are the further threads and the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.flows import MAP_TASK, UNDO_TASK
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.runs.claim import Claimer
from tasks_app.runtime.db.errors import patience_s
from tasks_app.runtime.execution.claims import ChildParts, Claimant, Fetcher, Forwarder, Poller
from tasks_app.runtime.execution.invocation import Invocation, ProcessGuard
from tasks_app.runtime.execution.pools import AsyncPool, ThreadPool
from tasks_app.runtime.execution.runner import Runner
from tasks_app.runtime.execution.settler import Settler
from tasks_app.runtime.flow_control.breakers import DependencyReport
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.runtime.run_times import RunTimes
from tasks_app.runtime.statistics import TASK_COUNTS

TURN_PATIENCE_S = 0.5  # how often an exclusive task that waits for its turn is tried
ROOM_PATIENCE_S = 0.02
"""How long single free places wait for more of them, so that claims are of groups."""
LOOK_AROUND_EVERY_S = 1.0
"""How often a child whose messages never end also claims tasks that no message announced."""
TOP_UP_S, PAUSE_S = 30.0, 1.0
"""For how long a message may be topped up from the pool, and how long it gets to end then."""


class Executor:
    """Claims for one child, and hands what it claimed to those that run it."""

    def __init__(
        self, parts: ChildParts, *, middleware: Sequence[Middleware] = (), extra_threads: int = 0
    ) -> None:
        settings, database, inflight = parts.settings, parts.database, parts.inflight
        self._most = settings.claim_size
        self._scan_interval_s = settings.scan_interval.total_seconds()
        self._inflight = inflight
        self._slot = parts.slot
        self.guard = ProcessGuard(replaceable=parts.identity.watched)
        self.run_times = RunTimes(inflight.housekeeper_wake.set)
        invocation = Invocation(
            settings, database, self.guard, middleware, parts.registry.plain_lane
        )
        self.dependencies = DependencyReport(
            database, invocation.dependencies, inflight.take_named_back
        )
        self.settler = Settler(database, inflight, settings.lease)
        self.runner = Runner(
            parts,
            guard=self.guard,
            run_times=self.run_times,
            invocation=invocation,
            settler=self.settler,
            dependencies=self.dependencies,
        )
        self.threads = ThreadPool(
            extra_threads, inflight, self.runner.is_unlimited, self.runner.carry_out
        )
        self.async_pool = AsyncPool(
            settings.async_concurrency, self.runner.run, inflight.return_unended, invocation.close
        )
        self._claimant = Claimant(parts)
        self.fetcher = Fetcher(parts, self._claimant)
        self.poller = Poller(parts, self._claimant)
        self._forwarder = Forwarder(parts)
        self._one_at_a_time = settings.async_concurrency == 1 and inflight.threads == 1
        # Each worker has those two.
        self._async_lately = set(self._claimant.plain.names) <= {MAP_TASK, UNDO_TASK}
        self._filled_at = 0.0
        self._look_around_at: dict[str, float] = {}
        """By queue, when the scan sent nothing of it that was to do."""

    def execute(
        self,
        ids: Sequence[int],
        queues: Sequence[str] = (),
        *,
        wake: bool = False,
        queue: str | None = None,
    ) -> None:
        """Carry out one message: claim its ids in groups, and run what was there to claim.

        Returns when every outcome is written, so that the child may be recycled after it. While
        something of it still runs beside this thread, the pool's tasks of ``queues`` fill the gaps.
        A ``wake`` comes from the scan, a hint from a producer. A flood of hints, or of messages
        whose tasks are done, leaves the scan no room in the broker; then a child looks by itself
        what the message's ``queue`` has.
        """
        self._slot.message(in_hand=True)
        self._inflight.open_message()
        self.threads.start()
        try:
            claimed_any = self._claim_and_run(list(ids))
            if queue is not None:
                self._look_around(queue, published=wake and claimed_any)
            self._top_up_while_busy(queues)
            self.runner.write_all(self.settler.flush_until_answered)
        finally:
            self._inflight.close_message()
            self._slot.message(in_hand=False)

    def _claim_and_run(self, ids: list[int]) -> bool:
        claimed_any = False
        while ids and not self._inflight.gave_back:
            self.runner.stop_if_due()
            if self._inflight.over:
                break
            size = self._group(len(ids))
            if not size:
                self.run_waiting()
                continue
            group, others = ids[:size], ids[size:]
            claimed = self.fetcher.claim(group)
            if claimed is None:
                # The scan publishes the others again. Else so fast a child would take all messages.
                self._inflight.stopping.wait(patience_s() * self._inflight.threads)
                break
            if not claimed:  # taken by others, done, unknown, or not due: this is usual
                self._forwarder.forward_unknown(group)
                ids = self.fetcher.still_waiting(others)
                missed = len(group) + len(others) - len(ids)
                TASK_COUNTS.happened(CountedOutcome.DUPLICATE, missed)
                continue
            claimed_any = True
            claimed_ids = {task.task_id for task in claimed}
            ids = [task_id for task_id in group if task_id not in claimed_ids] + others
            asynchronous = self._claimant.asynchronous.names
            self._async_lately = all(task.name in asynchronous for task in claimed)
            self.run_waiting(self.threads.number)
        self.run_waiting()
        return claimed_any

    def _group(self, wanted: int) -> int:
        if self._async_lately:
            room = self.async_pool.await_room(min(wanted, self.async_pool.share), ROOM_PATIENCE_S)
            return min(room * self._inflight.of_one_call, self._most)
        return self.next_group()

    def next_group(self) -> int:
        """Return how many tasks all threads together probably run within a moment."""
        group = max(self.run_times.next_group(self._most), self._inflight.of_one_call)
        return min(group * (1 + self.threads.number), self._most)

    def run_waiting(self, leave: int = 0) -> None:
        """Run what is in flight, and write it; an exclusive task waits for its turn.

        Returns when no more than ``leave`` wait, if that is given: other threads go on with them.
        """
        while True:
            self.runner.stop_if_due()
            if self._inflight.over:
                break
            if self._inflight.waits_for_async_pool:
                self.async_pool.start(self._inflight.start_async_pool(self.async_pool.free))
            if self._one_at_a_time and self.async_pool.busy:
                self._await_end(TURN_PATIENCE_S)
                continue
            if leave and self._inflight.waiting <= leave:
                break
            run = self._inflight.start_next()
            if run is not None:
                self.runner.carry_out(run)
            elif not self._inflight.await_turn(TURN_PATIENCE_S):
                break
        self.runner.write_all(self.settler.flush_quietly)

    def _look_around(self, queue: str, *, published: bool) -> None:
        """Claim what comes first in the queue, if the scan published none of it for a while."""
        now = time.monotonic()
        looks = not published and now >= self._look_around_at.get(queue, 0.0)
        if published or looks:
            self._look_around_at[queue] = now + LOOK_AROUND_EVERY_S
        if looks and not self._inflight.over and not self._inflight.gave_back:
            with suppress(SQLAlchemyError):  # the next scan finds them
                self.top_up((queue,), exclusive=not self.busy)
            self.run_waiting()

    @property
    def busy(self) -> bool:
        """Whether a further thread or the event loop is about to end something."""
        return self.async_pool.busy or self.threads.busy

    def _top_up_while_busy(self, queues: Sequence[str]) -> None:
        """While others of the message still run, fill the places that become free from the pool.

        Now and then nothing is added for a moment, so that messages end and a child can be
        recycled. Only where runs take longer than that does a message go on and on.
        """
        began = time.monotonic()
        nap_s, claim_at = ROOM_PATIENCE_S, 0.0
        while self.busy:
            self.runner.stop_if_due()
            now = time.monotonic()
            pauses = (now - began) % (TOP_UP_S + PAUSE_S) >= TOP_UP_S
            if now < claim_at or pauses or self._one_at_a_time or self._inflight.over:
                self._await_end(min(nap_s, TURN_PATIENCE_S))
                continue
            try:
                fruitful = self.top_up(queues, exclusive=False) > 0
            except SQLAlchemyError:
                fruitful = False
            nap_s = ROOM_PATIENCE_S if fruitful else 2 * nap_s
            nap_s = min(nap_s, self._scan_interval_s)
            claim_at = time.monotonic() + nap_s
            self.run_waiting()

    def _await_end(self, patience_s: float) -> None:
        if self.async_pool.busy:
            self.async_pool.await_end(patience_s)
        else:
            self.threads.await_end(patience_s)

    def top_up_whole(self, queues: Sequence[str], most: float = inf) -> int:
        """Do as :meth:`top_up`, and read all that is due for it, however long that takes."""
        self.poller.begin_at_the_front()
        return self.top_up(queues, most=most)

    def top_up(self, queues: Sequence[str], *, exclusive: bool = True, most: float = inf) -> int:
        """Claim from the pool what threads and event loop have room for; return how many tasks.

        Without ``exclusive``, no task that would have to wait here until all others have ended.
        ``most``: in all.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        claimed, quiet = 0, list[Claimer]()
        for kind in self.poller.kinds:
            if self.poller.backoffs[kind].lasts:
                quiet.append(kind)
            else:
                claimed += self._of_kind(kind, queues, most - claimed, exclusive=exclusive)
        if not claimed:
            for kind in quiet:
                claimed += self._of_kind(kind, queues, most - claimed, exclusive=exclusive)
        return claimed

    def _of_kind(
        self, kind: Claimer, queues: Sequence[str], most: float, *, exclusive: bool
    ) -> int:
        if kind is self._claimant.asynchronous:
            room = min(self._room() * self._inflight.of_one_call, self._most)
        else:
            room = self.next_group() if self._inflight.waiting <= self.threads.number else 0
        room = int(min(room, most))
        return self.poller.claim(queues, room, kind, exclusive=exclusive) if room else 0

    def _room(self) -> int:
        """Return how many places of the async pool to fill: many at once, or few after a moment."""
        room, now = self.async_pool.free, time.monotonic()
        is_soon = now - self._filled_at < ROOM_PATIENCE_S
        if is_soon and self.async_pool.busy and room < self.async_pool.share:
            return 0
        self._filled_at = now
        return room
