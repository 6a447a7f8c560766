"""Tables, jobs and workers of batch tests, and who owned which row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import uuid4

from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, Integer, case, column, select, text

from tasks_app.batch.control import abandon_job, get_job, restart_job, start_job, stop_job
from tasks_app.batch.job import JOBS, BatchJob
from tasks_app.batch.step import RUN_TUNING, Step
from tasks_app.domain.batch.policies import ChunkPace
from tasks_app.domain.batch.records import BatchStatus, BatchView, JobRun
from tasks_app.domain.partition.keys import KeyType, Range
from tasks_app.domain.partition.records import Partition, Plan, StoredPartition, Table
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.batch import partitions
from tasks_app.pool.batch.sources.predicate import predicate
from tasks_app.pool.batch.sources.relation import Source, find, source_of
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
        ids = [row.id for row in rows]
        self.calls.append(ids)
        ctx.connection.execute(text(DONE), {"ids": ids, "run": ctx.run})

    def job(self, *steps: Step, name: str = "job", **options: Any) -> BatchJob:
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
        with self.engine.begin() as connection:
            return start_job(connection, job, params, **options)

    def restart(self, job: BatchJob, params: Any = None) -> JobRun:
        """Start an instance that is there."""
        run = self.start(job, params)
        assert not run.new
        return run

    def stop(self, batch_id: int) -> int:
        with self.engine.begin() as connection:
            return stop_job(connection, batch_id)

    def abandon(self, batch_id: int) -> None:
        with self.engine.begin() as connection:
            abandon_job(connection, batch_id)

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
        begun = self.start(job, params)
        self.bench.drain(**options)
        return self.view(begun.batch_id)

    def completes(self, *steps: Step) -> BatchView:
        """Run a job of these steps, which completes."""
        return self._ends(steps, BatchStatus.COMPLETED)

    def fails(self, *steps: Step) -> BatchView:
        """Run a job of these steps, which fails."""
        return self._ends(steps, BatchStatus.FAILED)

    def _ends(self, steps: Iterable[Step], status: BatchStatus) -> BatchView:
        view = self.run(self.job(*steps))
        assert view.batch.status is status, [step.error for step in view.steps]
        return view

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
        with self.engine.connect() as connection:
            view = get_job(connection, batch_id)
        assert view is not None
        return view

    def parts(self, batch_id: int) -> list[StoredPartition]:
        with self.engine.connect() as connection:
            return partitions.find_by_batch(connection, batch_id)

    def statuses(self, batch_id: int) -> list[str]:
        return [str(each.status) for each in self.parts(batch_id)]

    @property
    def done(self) -> list[int]:
        """The ids that were done, in their order, as often as they were."""
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT id FROM done ORDER BY id")).scalars())


ROWS = Table("batch_rows", key="key")
COLUMNS = {
    KeyType.INTEGER: "bigint",
    KeyType.NUMERIC: "numeric",
    KeyType.TEXT: "text",
    KeyType.UUID: "uuid",
    KeyType.DATE: "date",
    KeyType.TIMESTAMP: "timestamp",
    KeyType.TIMESTAMPTZ: "timestamptz",
}
LETTERS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4
) | st.sampled_from(["", "a", "A", "ä", "Z", "z", " ", "a ", "é", "\U0001f40d", "0", "10", "9"])
INSTANTS = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 30))  # noqa: DTZ001
KEYS: dict[KeyType, st.SearchStrategy[Any]] = {
    KeyType.INTEGER: st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5),
    KeyType.NUMERIC: st.decimals(-1000, 1000, places=2)
    | st.sampled_from(
        [Decimal(word) for word in ("0", "1.0", "1.00", "NaN", "Infinity", "-Infinity")]
    ),
    KeyType.TEXT: LETTERS,
    KeyType.UUID: st.uuids(),
    KeyType.DATE: (st.dates() | st.sampled_from([date.min, date.max])).map(str)
    | st.sampled_from(["infinity", "-infinity", "0044-03-15 BC"]),
    KeyType.TIMESTAMP: st.datetimes().map(str) | st.sampled_from(["infinity", "-infinity"]),
    KeyType.TIMESTAMPTZ: INSTANTS.map("{}Z".format) | st.sampled_from(["infinity", "-infinity"]),
}
"""Of each type what is odd about it, and a few keys that come again and again."""
SOME: dict[KeyType, list[Any]] = {
    KeyType.INTEGER: [-7, 0, 0, 2**40],
    KeyType.NUMERIC: [Decimal("-0.5"), 0, Decimal("1.0"), Decimal("1.00")],
    KeyType.TEXT: ["", "100%", "it's", '"; DROP TABLE x; --', ":name", "\\", "ß\U0001f40d"],
    KeyType.UUID: ["00000000-0000-4000-8000-000000000000", "f" * 32],
    KeyType.DATE: [date(1, 2, 3), "infinity", "2026-05-01"],
    KeyType.TIMESTAMP: ["2026-05-01 12:00", "-infinity"],
    KeyType.TIMESTAMPTZ: ["2026-05-01 12:00+02", "infinity"],
}


@st.composite
def some_keys(draw: st.DrawFn, key_type: KeyType) -> list[Any]:
    """None, one or many keys, spread or skewed, with and without NULLs."""
    few = draw(st.lists(KEYS[key_type], min_size=1, max_size=5))
    key = KEYS[key_type] | st.sampled_from(few) | st.none()
    return draw(st.lists(key, max_size=40))


def make_table(connection: Connection, kind: str, name: str = ROWS.name) -> None:
    connection.execute(
        text(
            f"CREATE TEMP TABLE IF NOT EXISTS {name}"
            f" (id bigint GENERATED ALWAYS AS IDENTITY, key {kind})"
        )
    )


def fill(connection: Connection, kind: str, keys: Iterable[Any], name: str = ROWS.name) -> None:
    """Give the table these rows and no others."""
    connection.execute(text(f"DELETE FROM {name}"))
    rows = [{"key": key} for key in keys]
    if rows:
        connection.execute(text(f"INSERT INTO {name} (key) VALUES (CAST(:key AS {kind}))"), rows)


def owners(connection: Connection, source: Source, plan: Plan) -> list[int]:
    """How many partitions own each row: each is to have one."""
    relation = find(connection, source)
    own = [
        case((predicate(each, relation.key, plan.key_type), 1), else_=0) for each in plan.partitions
    ]
    number = sum(own[1:], own[0])
    return list(connection.execute(select(number).select_from(relation.rows_of)).scalars())


def read(connection: Connection, source: Source, plan: Plan, partition: Partition) -> Sequence[int]:
    source = source_of(source, partition)
    relation = find(connection, source)
    own = predicate(partition, relation.key, plan.key_type)
    query = select(column("id", Integer)).select_from(relation.rows_of).where(own)
    return connection.execute(query.order_by(column("id"))).scalars().all()
