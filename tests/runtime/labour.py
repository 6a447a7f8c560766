"""Tasks of all kinds that statements are needed for, and whoever works on them."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from tasks_app.pool.dispatch.leader_lease import Rank
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.leader import Leader
from tasks_app.runtime.worker.standby import Standby
from tests.clock import until
from tests.factory import claimed_task, pending_task
from tests.runtime.bench import Bench
from tests.runtime.memory import Memory

LEASE_S = 9
PAST = datetime.now(UTC) - timedelta(minutes=10)
NOW = "UPDATE task_pending SET due_at = now(), scan_at = now() WHERE crashes > 0 AND due_at > now()"
LEFT = "SELECT count(*) FROM task_pending"


class Labour:
    """A child with a standby that scans, or a worker without a broker."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.memory = Memory()
        self._over = bench.event()
        waits = ",".join(["1s"] * 9)

        @bench.handler("quick")
        def quick(ctx: Any) -> None:
            bench.runs.append(ctx.task_id)
            if ctx.task_id == self.dawdler:  # claimed with others, which are given back
                self._dawdle()

        bench.handler("once", at_most_once=True)(lambda ctx: bench.runs.append(ctx.task_id))
        bench.writing("effect", retry=waits)

        @bench.handler("again", retry="0s,0s")
        def again(ctx: Any) -> None:
            if ctx.failures == 0:
                raise LookupError

        @bench.handler("slow")
        def slow(ctx: Any) -> None:
            time.sleep(0.3)

    def _dawdle(self) -> None:
        """Keep the child busy until it gives back what it claimed with this one."""
        time.sleep(0.3)
        with suppress(AssertionError):  # they are not given back by each fault
            until(lambda: {*self.bench.states(self.behind)} != {"RUNNING"})

    def tasks(self) -> None:
        bench = self.bench
        with bench.engine.begin() as connection:
            self.late = pending_task(connection, "quick", now=PAST, expires_at=PAST)
            self.vanished = int(claimed_task(connection, name="quick", now=PAST).task_id)
        self.runs_once = [bench.create("quick") for _ in range(6)] + [self.vanished]
        self.effects = [bench.create("effect") for _ in range(3)]
        self.others = [bench.create("again"), bench.create("slow"), bench.create("slow")]
        self.dawdler, *self.behind = [bench.create("quick") for _ in range(5)]
        self.runs_once += [self.dawdler, *self.behind]
        self.once = bench.create("once")

    def begin(self, *, with_broker: bool) -> None:
        if with_broker:
            self._begin_with_broker()
        else:
            self._begin_without()

    def _begin_with_broker(self) -> None:
        """Start a child, a standby that scans, and a consumer between them."""
        bench = self.bench
        options = {"lease": LEASE_S, "give_back_after": 0.1}
        self.child = bench.child(**options)
        database = Database(bench.url)
        leader = Leader(
            bench.settings(**options), database, self.memory, "standby", rank=Rank.STANDBY
        )
        leader.duties.rescuer.let_renew = lambda: None  # type: ignore[method-assign]
        self.standby = Standby(bench.settings(**options), leader, self.child)
        self.standby.start()
        bench.at_end(self.standby.stop)
        bench.at_end(lambda: self.standby._thread.join(5))
        bench.at_end(database.dispose)
        self.worker = bench.beside(self._consume)

    def _begin_without(self) -> None:
        work = self.bench.work(lease=LEASE_S, give_back_after=0.1, scan_interval=0.5)
        work.duties.rescuer.let_renew = lambda: None  # type: ignore[method-assign]
        self.child = work.child
        self.worker = self.bench.beside(work.run)

    def _consume(self) -> None:
        self.child.execute([self.dawdler, *self.behind])  # together, whatever beat publishes
        while not self._over.is_set():
            self.child.housekeeper.renewer.due_at = 0.0
            if self.memory.messages:
                self.child.execute(self.memory.messages.pop(0).ids, wake=True)
            self._over.wait(0.005)

    def over(self, timeout_s: float = 60) -> bool:
        """Wait until all is done; what was rescued need not wait for its distance."""
        return until(
            lambda: (self.bench.sql(NOW), self.bench.sql(LEFT) == 0)[1], timeout_s, "the end"
        )

    def check(self) -> None:
        """Nothing is lost, nothing ran twice, everybody lives."""
        bench = self.bench
        done = [*self.runs_once, *self.effects, *self.others, self.once]
        assert bench.states(done) == ["SUCCEEDED"] * len(done)
        assert bench.state(self.late) == "EXPIRED"
        runs = [
            task_id for task_id in [*self.runs_once, self.once] if bench.runs.count(task_id) != 1
        ]
        assert not runs
        assert [bench.effects(task_id) for task_id in self.effects] == [1, 1, 1]
        assert self.worker.is_alive()
        assert self.child.housekeeper.alive
        until(lambda: self.child.inflight.empty, what="an empty in-flight set")
