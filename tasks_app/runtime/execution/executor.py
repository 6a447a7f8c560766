"""The executor: carries out messages, and keeps the hands of its child busy meanwhile.

Three kinds of hands take tasks from the in-flight set: this thread, the child's further threads,
and its crew of async handlers. What they do not get from the message they get from the pool.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.pool.dispatch import ledger
from tasks_app.pool.runs.claim_sql import Claimer
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import patience_s
from tasks_app.runtime.execution.async_pool import AsyncPool
from tasks_app.runtime.execution.fast_path import FastPath
from tasks_app.runtime.execution.runner import Runner
from tasks_app.runtime.execution.settler import Settler
from tasks_app.runtime.execution.thread_pool import ThreadPool
from tasks_app.runtime.inflight.fetcher import Claims
from tasks_app.runtime.inflight.inflight import InFlight
from tasks_app.runtime.inflight.passing_on import PassingOn
from tasks_app.runtime.scoreboard.slot import Slot

TURN_PATIENCE_S = 0.5
"""Between two looks whether a task that runs alone may start."""
ROOM_PATIENCE_S = 0.02
"""How long single free places wait for company, so that claims are of groups."""
TOPS_UP_S, PAUSES_S = 30.0, 1.0
"""For how long a message may be topped up from the pool, and how long it gets to end then."""


class Executor:
    """Claims for one child and hands to its runner."""

    def __init__(  # noqa: PLR0913, PLR0917  it knows all hands
        self,
        settings: Settings,
        database: Database,
        inflight: InFlight,
        slot: Slot,
        settler: Settler,
        runner: Runner,
        sprints: FastPath,
        claims: Claims,
        async_pool: AsyncPool,
        threads: ThreadPool,
        passing_on: PassingOn,
    ) -> None:
        self._settings = settings
        self._database = database
        self._inflight = inflight
        self._slot = slot
        self._settler = settler
        self._runner = runner
        self._sprints = sprints
        self._claims = claims
        self._async_pool = async_pool
        self._threads = threads
        self._passing_on = passing_on
        self._one_at_a_time = settings.async_concurrency == 1 and inflight.threads == 1
        self._async_lately = not claims.plain.names
        self._filled_at = 0.0

    def execute(
        self, dispatch_id: int | None, ids: Sequence[int], queues: Sequence[str] = ()
    ) -> None:
        """Carry out one message: claim its ids in groups, run what was there to take.

        Returns when every outcome is written, so that the child may be recycled after it. While
        something of it still runs beside this thread, the other hands are fed from ``queues``.
        """
        self._slot.message(dispatch_id or 0)
        self._inflight.open_message(dispatch_id or 0)
        self._threads.start()
        try:
            self._work_off(list(ids))
            self._stay(queues)
            self._settler.flush_until_answered()
        finally:
            if dispatch_id and not self._inflight.gave_back:
                self._finish_message(dispatch_id)
            self._inflight.close_message()
            self._slot.message(0)

    def _work_off(self, ids: list[int]) -> None:
        while ids and not self._over() and not self._inflight.gave_back:
            size = self._group(len(ids))
            if not size:
                self.run_waiting()
                continue
            group, rest = ids[:size], ids[size:]
            claimed = self._claims.of_message(group)
            if claimed is None:
                # The scan comes back to the rest; so fast a child would else eat up all messages.
                self._inflight.stopping.wait(patience_s() * self._inflight.threads)
                break
            if not claimed:  # taken by others, done, unknown, or not due: an everyday answer
                self._passing_on.look(group)
                ids = self._claims.still_waiting(rest)
                continue
            taken = {task.task_id for task in claimed}
            ids = [task_id for task_id in group if task_id not in taken] + rest
            self._async_lately = self._claims.all_async(claimed)
            self.run_waiting(self._threads.number)
        self.run_waiting()

    def _group(self, wanted: int) -> int:
        """How many to claim next; 0: the async pool has no room just now."""
        most = self._settings.claim_size
        if self._async_lately:
            room = self._async_pool.await_room(min(wanted, self._async_pool.share), ROOM_PATIENCE_S)
            return min(room, most)
        return self._group_of_plain()

    def _group_of_plain(self) -> int:
        """What all threads together likely carry out in a moment."""
        most = self._settings.claim_size
        return min(self._runner.pace.next_group(most) * (1 + self._threads.number), most)

    def run_waiting(self, leave: int = 0) -> None:
        """Run what is in flight, and write it; a task that runs alone waits for its turn.

        With ``leave``, return when only so many wait: other threads go on with them.
        """
        while not self._over():
            if self._inflight.waits_for_async_pool:
                self._async_pool.start(self._inflight.start_async_pool(self._async_pool.free))
            if self._one_at_a_time and self._async_pool.busy:
                self._await_end(TURN_PATIENCE_S)
                continue
            if leave and self._inflight.waiting <= leave:
                break
            run = self._inflight.start_next()
            if run is not None:
                self._sprints.carry_out(run)
            elif not self._inflight.await_turn(TURN_PATIENCE_S):
                break
        self._settler.flush_quietly()

    def top_up_whole(self, queues: Sequence[str]) -> int:
        """Do as :meth:`top_up`, and read all that is due for it, however long that takes.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        self._claims.begin_at_the_front()
        return self.top_up(queues)

    def top_up(self, queues: Sequence[str], *, lonely: bool = True) -> int:
        """Claim from the pool what threads and crew have room for; return how many tasks.

        Without ``lonely`` none that would have to wait here until all others have ended.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        claimed, quiet = 0, list[Claimer]()
        for kind in self._claims.kinds:
            if self._claims.lulls[kind].lasts:
                quiet.append(kind)
            else:
                claimed += self._of_kind(kind, queues, lonely=lonely)
        if not claimed:
            claimed = sum(self._of_kind(kind, queues, lonely=lonely) for kind in quiet)
        return claimed

    def _of_kind(self, kind: Claimer, queues: Sequence[str], *, lonely: bool) -> int:
        if kind is self._claims.asynchronous:
            most = min(self._room(), self._settings.claim_size)
        else:
            most = self._group_of_plain() if self._inflight.waiting <= self._threads.number else 0
        return self._claims.of_pool(queues, most, kind, lonely=lonely) if most else 0

    def _room(self) -> int:
        """How many places of the async pool to fill now: many, or after a moment the few."""
        room, now = self._async_pool.free, time.monotonic()
        if (
            self._async_pool.busy
            and room < self._async_pool.share
            and now - self._filled_at < ROOM_PATIENCE_S
        ):
            return 0
        self._filled_at = now
        return room

    def _stay(self, queues: Sequence[str]) -> None:
        """While others of the message still run, fill the places that become free from the pool.

        Every so often nothing is added for a moment, so that messages end and a child can be
        recycled. Only where runs take longer than that a message may last and last.
        """
        began = time.monotonic()
        nap_s, look_at = ROOM_PATIENCE_S, 0.0
        while self._async_pool.busy or self._threads.busy:
            now = time.monotonic()
            pauses = (now - began) % (TOPS_UP_S + PAUSES_S) >= TOPS_UP_S
            if now < look_at or pauses or self._one_at_a_time or self._over():
                self._await_end(min(nap_s, TURN_PATIENCE_S))
                continue
            try:
                fruitful = self.top_up(queues, lonely=False) > 0
            except SQLAlchemyError:
                fruitful = False
            nap_s = ROOM_PATIENCE_S if fruitful else 2 * nap_s
            nap_s = min(nap_s, self._settings.scan_interval.total_seconds())
            look_at = time.monotonic() + nap_s
            self.run_waiting()

    def _await_end(self, patience_s: float) -> None:
        if self._async_pool.busy:
            self._async_pool.await_room(self._async_pool.share, patience_s)
        else:
            self._threads.await_end(patience_s)

    def _over(self) -> bool:
        """Whether nothing more may start; the housekeeper gives back what has not."""
        if not self._slot.runs:
            self._inflight.stop()
        return self._inflight.over

    def _finish_message(self, dispatch_id: int) -> None:
        try:
            with self._database.single() as connection:
                ledger.finish(connection, dispatch_id)
        except SQLAlchemyError:
            self._inflight.write_later(lambda connection: ledger.finish(connection, dispatch_id))
