"""Where batch jobs of tests run: a table of rows to do, and a note of each that was done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, text

from tasks_app.batch.control import get_job, restart_job, start_job, stop_job
from tasks_app.batch.job import JOBS, BatchJob
from tasks_app.batch.step import RUN_TUNING, Step
from tasks_app.domain.batch.policies import ChunkPace
from tasks_app.domain.batch.records import BatchView, JobRun
from tasks_app.domain.partition.keys import KeyType, Range
from tasks_app.domain.partition.records import Partition, Plan, StoredPartition, Table
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.batch import partitions
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.handlers.registry import Registry
from tests.factory import claimer, ending
from tests.runtime.bench import Bench

TODO = Table("todo")
DONE = "INSERT INTO done (id, run) SELECT i, :run FROM unnest(CAST(:ids AS bigint[])) AS i"


@dataclass(frozen=True)
class Ranges:
    """A planner that cuts where the test says."""

    cuts: tuple[int, ...]

    def plan(self, connection: Any, source: Any) -> Plan:
        """Cut."""
        bounds = [None, *self.cuts, None]
        pairs = pairwise(bounds)
        parts = (Partition(no, range=Range(*pair)) for no, pair in enumerate(pairs, 1))
        return Plan("as the test says", KeyType.INTEGER, tuple(parts))


class Greedy(ChunkPace):
    """Divides whatever there is."""

    def is_worth_dividing(self, rows: int, worth_s: float) -> bool:
        return rows > 0


class Yard:
    """The table, the note and the bench."""

    def __init__(self, engine: Engine, bench: Bench) -> None:
        self.engine = engine
        self.bench = bench
        self.tuning = replace(RUN_TUNING, first_wait_s=0.001)
        """How the runs of its jobs wait and look around."""
        self.calls: list[list[int]] = []
        """Ids of each chunk that was handed to a handler."""
        with engine.begin() as connection:
            for statement in (
                "DROP TABLE IF EXISTS todo, done CASCADE",  # a test that failed may leave views
                "CREATE TABLE todo (id bigint PRIMARY KEY, place text, amount int NOT NULL)",
                "CREATE TABLE done (id bigint, run int)",
            ):
                connection.execute(text(statement))

    def close(self) -> None:
        """Leave nothing behind."""
        self.bench.close()
        self.sql("DROP TABLE IF EXISTS todo, done, stock CASCADE")

    def rows(self, number: int) -> None:
        """Fill the table with ids from 1 on."""
        self.sql(
            "INSERT INTO todo SELECT i, 'place ' || i % 7, i % 100 FROM generate_series(1, :n) i"
            " ON CONFLICT DO NOTHING",
            n=number,
        )

    def sql(self, statement: str, **values: Any) -> Any:
        """Execute and commit; return the first column of the first row."""
        return self.bench.sql(statement, **values)

    def note(self, ctx: Any, rows: Sequence[Any]) -> None:
        """A chunk handler: each row is done."""
        ids = [row.id for row in rows]
        self.calls.append(ids)
        ctx.connection.execute(text(DONE), {"ids": ids, "run": ctx.run})

    def job(self, *steps: Step, name: str = "job", **options: Any) -> BatchJob:
        """Declare a job on the bench."""
        options = {"registry": self.bench.registry, "tuning": self.tuning, **options}
        return BatchJob(name, steps, **options)

    def step(
        self,
        chunk: Callable[..., Any] | None = None,
        *,
        name: str = "step",
        source: Any = TODO,
        cuts: tuple[int, ...] = (26, 51, 76),
        **options: Any,
    ) -> Step:
        """Declare a step over the table, four partitions of 25 rows unless it says otherwise."""
        given = {"planner": Ranges(cuts), "commit_every": 10, "retry": "0s", **options}
        return Step(name, source, chunk=chunk or self.note, **given)

    def steal_at_once(self) -> None:
        """Divide whatever runs: rows of tests take no time."""
        self.tuning = replace(self.tuning, steal_look_every_s=0, measure_every_s=0, worth_s=0)

    # -- act

    def start(self, job: BatchJob, params: Any = None, **options: Any) -> JobRun:
        """Start and commit."""
        with self.engine.begin() as connection:
            return start_job(connection, job, params, **options)

    def restart(self, job: BatchJob, params: Any = None) -> JobRun:
        """Start an instance that is there."""
        run = self.start(job, params)
        assert not run.new
        return run

    def stop(self, batch_id: int) -> int:
        """Stop and commit."""
        with self.engine.begin() as connection:
            return stop_job(connection, batch_id)

    def go_on(self, batch_id: int, **options: Any) -> JobRun:
        """Restart by id, as an operator does."""
        with self.engine.begin() as connection:
            return restart_job(connection, batch_id, **options)

    def go_on_with(self, job: BatchJob, batch_id: int, **options: Any) -> BatchView:
        """Restart by id where the job is known, work, and look."""
        JOBS[job.name] = job
        try:
            self.go_on(batch_id, **options)
        finally:
            del JOBS[job.name]
        self.bench.drain()
        return self.view(batch_id)

    def deploy(self) -> None:
        """Forget all code, as a process that starts anew."""
        self.bench.registry = Registry()

    def run(self, job: BatchJob, params: Any = None, **options: Any) -> BatchView:
        """Start, work until nothing is due, and look."""
        begun = self.start(job, params)
        self.bench.drain(**options)
        return self.view(begun.batch_id)

    def plan(self) -> None:
        """Carry out what waits now and nothing else: of a job that has just begun, its plan."""
        with self.engine.connect() as connection:
            ids = connection.execute(text("SELECT id FROM task_pending")).scalars().all()
        self.bench.execute(ids)

    def reap(self, number: int) -> None:
        """Let the task of a partition die for good, as if it had killed its process each time."""
        task_id = self.sql("SELECT task_id FROM task_partition WHERE partition_no = :n", n=number)
        with self.engine.begin() as connection:
            (task,) = claim(connection, [task_id], claimer("job:step"), uuid4())
            cause = Cause("process died", "signal 9")
            assert settle_one(connection, ending(task, Event.FAIL, cause=cause))

    # -- look

    def view(self, batch_id: int) -> BatchView:
        """Return the instance."""
        with self.engine.connect() as connection:
            view = get_job(connection, batch_id)
        assert view is not None
        return view

    def parts(self, batch_id: int) -> list[StoredPartition]:
        """Return its partitions."""
        with self.engine.connect() as connection:
            return partitions.find_by_batch(connection, batch_id)

    def statuses(self, batch_id: int) -> list[str]:
        """Return how its partitions stand."""
        return [str(each.status) for each in self.parts(batch_id)]

    @property
    def done(self) -> list[int]:
        """The ids that were done, in their order, as often as they were."""
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT id FROM done ORDER BY id")).scalars())
