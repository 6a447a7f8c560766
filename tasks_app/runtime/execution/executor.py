"""The executor: carries out messages, and keeps all of its child busy meanwhile.

Three things carry out tasks of the in-flight set: this thread, the child's further threads, and its
event loop. What they do not get from the message they get from the pool.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.runs.claim import Claimer
from tasks_app.runtime.db.errors import patience_s
from tasks_app.runtime.execution.claims import ChildParts, Claimant, Fetcher, PassingOn, Poller
from tasks_app.runtime.execution.pools import AsyncPool, ThreadPool
from tasks_app.runtime.execution.runner import Runner, RunParts
from tasks_app.runtime.statistics import TASK_COUNTS

TURN_PATIENCE_S = 0.5
"""Between two looks whether a task that runs alone may start."""
ROOM_PATIENCE_S = 0.02
"""How long single free places wait for more of them, so that claims are of groups."""
LOOKS_EVERY_S = 1.0
"""Where hints and stale messages keep a child busy, it looks that often for what none told of."""
TOPS_UP_S, PAUSES_S = 30.0, 1.0
"""For how long a message may be topped up from the pool, and how long it gets to end then."""


class Executor:
    """Claims for one child, and hands what it claimed to those that run it."""

    def __init__(
        self,
        parts: ChildParts,
        tools: RunParts,
        claimant: Claimant,
        runner: Runner,
        threads: ThreadPool,
        async_pool: AsyncPool,
    ) -> None:
        settings = parts.settings
        self._most = settings.claim_size
        self._scan_interval_s = settings.scan_interval.total_seconds()
        self._inflight = parts.inflight
        self._slot = parts.slot
        self._run_times = tools.run_times
        self._settler = tools.settler
        self._claimant = claimant
        self.fetcher: Fetcher = Fetcher(parts, claimant)
        self.poller: Poller = Poller(parts, claimant)
        self._passing_on = PassingOn(parts)
        self._runner = runner
        self._threads = threads
        self.async_pool = async_pool
        self._one_at_a_time = settings.async_concurrency == 1 and parts.inflight.threads == 1
        self._async_lately = not claimant.plain.names
        self._filled_at = 0.0
        self._looks_at: dict[str, float] = {}
        """By queue, when the scan sent nothing of it that was to do."""

    def execute(
        self,
        ids: Sequence[int],
        queues: Sequence[str] = (),
        *,
        wake: bool = False,
        queue: str | None = None,
    ) -> None:
        """Carry out one message: claim its ids in groups, run what was there to take.

        Returns when every outcome is written, so that the child may be recycled after it. While
        something of it still runs beside this thread, the pool's tasks of ``queues`` fill the gaps.
        A ``wake`` comes from the scan, a hint from a producer. A flood of hints, or of messages
        whose tasks are done, leaves the scan no room in the broker; then a child looks by itself
        what the message's ``queue`` has.
        """
        self._slot.message(in_hand=True)
        self._inflight.open_message()
        self._threads.start()
        try:
            brought = self._work_off(list(ids))
            if queue is not None:
                self._look_around(queue, published=wake and brought)
            self._stay(queues)
            self._runner.write_all(self._settler.flush_until_answered)
        finally:
            self._inflight.close_message()
            self._slot.message(in_hand=False)

    def _look_around(self, queue: str, *, published: bool) -> None:
        """Take from the queue what comes first, if the scan published none of it for a while."""
        now = time.monotonic()
        looks = not published and now >= self._looks_at.get(queue, 0.0)
        if published or looks:
            self._looks_at[queue] = now + LOOKS_EVERY_S
        if looks and not self._inflight.over and not self._inflight.gave_back:
            with suppress(SQLAlchemyError):  # the next scan finds them
                self.top_up((queue,), lonely=not self._is_busy_beside)
            self.run_waiting()

    @property
    def _is_busy_beside(self) -> bool:
        return self.async_pool.busy or self._threads.busy

    def _work_off(self, ids: list[int]) -> bool:
        """Return whether there was something to take."""
        brought = False
        while ids and not self._inflight.gave_back:
            self._runner.stop_if_due()
            if self._inflight.over:
                break
            size = self._group(len(ids))
            if not size:
                self.run_waiting()
                continue
            group, rest = ids[:size], ids[size:]
            claimed = self.fetcher.claim(group)
            if claimed is None:
                # The scan publishes the rest again. Else so fast a child would take all messages.
                self._inflight.stopping.wait(patience_s() * self._inflight.threads)
                break
            if not claimed:  # taken by others, done, unknown, or not due: this is usual
                self._passing_on.look(group)
                ids = self.fetcher.still_waiting(rest)
                missed = len(group) + len(rest) - len(ids)
                TASK_COUNTS.happened(CountedOutcome.DUPLICATE, missed)
                continue
            brought = True
            taken = {task.task_id for task in claimed}
            ids = [task_id for task_id in group if task_id not in taken] + rest
            asynchronous = self._claimant.asynchronous.names
            self._async_lately = all(task.name in asynchronous for task in claimed)
            self.run_waiting(self._threads.number)
        self.run_waiting()
        return brought

    def _group(self, wanted: int) -> int:
        """Return how many to claim next; 0: the async pool has no room just now."""
        if self._async_lately:
            room = self.async_pool.await_room(min(wanted, self.async_pool.share), ROOM_PATIENCE_S)
            return min(room, self._most)
        return self.next_group()

    def next_group(self) -> int:
        """Return how many tasks all threads together likely carry out in a moment."""
        group = self._run_times.next_group(self._most)
        return min(group * (1 + self._threads.number), self._most)

    def run_waiting(self, leave: int = 0) -> None:
        """Run what is in flight, and write it; a task that runs alone waits for its turn.

        Returns when no more than ``leave`` wait, if that is given: other threads go on with them.
        """
        while True:
            self._runner.stop_if_due()
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
                self._runner.carry_out(run)
            elif not self._inflight.await_turn(TURN_PATIENCE_S):
                break
        self._runner.write_all(self._settler.flush_quietly)

    def top_up_whole(self, queues: Sequence[str]) -> int:
        """Do as :meth:`top_up`, and read all that is due for it, however long that takes."""
        self.poller.begin_at_the_front()
        return self.top_up(queues)

    def top_up(self, queues: Sequence[str], *, lonely: bool = True) -> int:
        """Claim from the pool what threads and event loop have room for; return how many tasks.

        Without ``lonely``, no task that would have to wait here until all others have ended.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        claimed, quiet = 0, list[Claimer]()
        for kind in self.poller.kinds:
            if self.poller.backoffs[kind].lasts:
                quiet.append(kind)
            else:
                claimed += self._of_kind(kind, queues, lonely=lonely)
        if not claimed:
            claimed = sum(self._of_kind(kind, queues, lonely=lonely) for kind in quiet)
        return claimed

    def _of_kind(self, kind: Claimer, queues: Sequence[str], *, lonely: bool) -> int:
        if kind is self._claimant.asynchronous:
            most = min(self._room(), self._most)
        else:
            most = self.next_group() if self._inflight.waiting <= self._threads.number else 0
        return self.poller.claim(queues, most, kind, lonely=lonely) if most else 0

    def _room(self) -> int:
        """Return how many places of the async pool to fill: many at once, or few after a moment."""
        room, now = self.async_pool.free, time.monotonic()
        is_soon = now - self._filled_at < ROOM_PATIENCE_S
        if is_soon and self.async_pool.busy and room < self.async_pool.share:
            return 0
        self._filled_at = now
        return room

    def _stay(self, queues: Sequence[str]) -> None:
        """While others of the message still run, fill the places that become free from the pool.

        Now and then nothing is added for a moment, so that messages end and a child can be
        recycled. Only where runs take longer than that does a message go on and on.
        """
        began = time.monotonic()
        nap_s, look_at = ROOM_PATIENCE_S, 0.0
        while self._is_busy_beside:
            self._runner.stop_if_due()
            now = time.monotonic()
            pauses = (now - began) % (TOPS_UP_S + PAUSES_S) >= TOPS_UP_S
            if now < look_at or pauses or self._one_at_a_time or self._inflight.over:
                self._await_end(min(nap_s, TURN_PATIENCE_S))
                continue
            try:
                fruitful = self.top_up(queues, lonely=False) > 0
            except SQLAlchemyError:
                fruitful = False
            nap_s = ROOM_PATIENCE_S if fruitful else 2 * nap_s
            nap_s = min(nap_s, self._scan_interval_s)
            look_at = time.monotonic() + nap_s
            self.run_waiting()

    def _await_end(self, patience_s: float) -> None:
        if self.async_pool.busy:
            self.async_pool.await_end(patience_s)
        else:
            self._threads.await_end(patience_s)
