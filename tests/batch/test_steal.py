"""A partition that runs gives half of its rest to who is idle, and each row is done once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from tasks_app.batch.control import replan_job, stop_job
from tasks_app.batch.execution.partition_run import NothingToStealError, Stealing
from tasks_app.batch.job import JOBS, BatchJob
from tasks_app.batch.planners.even import Even, Hash
from tasks_app.batch.planners.keys import KeyList, KeyRanges, Repository, Views
from tasks_app.batch.replan import replan, share
from tasks_app.batch.step import RunTuning, Step
from tasks_app.batch.validate import problems
from tasks_app.domain.batch.policies import ChunkPace, CommitEvery
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.errors import BatchStateError, PlanError
from tasks_app.domain.partition.keys import KeyType, write_key
from tasks_app.domain.partition.records import Partition, RowCounts, Status
from tasks_app.domain.partition.records import Table as Source
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.batch import partition_progress, partitions
from tasks_app.pool.batch.partition_progress import RunSignal
from tasks_app.pool.batch.sources.cuts import keys_owned
from tasks_app.pool.batch.sources.measure import histogram
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.handlers.registry import Registry
from tests.batch.yard import COLUMNS, ROWS, TODO, Greedy, Yard, fill, make_table, owners, some_keys
from tests.environment import forbidden
from tests.factory import claimer, ending
from tests.pool.interleave import blocked, two

SKEWED = (11, 21, 31)
"""Three partitions of ten rows, and one of all others."""


@pytest.fixture
def yard(yard: Yard) -> Yard:
    yard.steal_at_once()
    return yard


def sizes(yard: Yard, batch_id: int) -> list[int]:
    return [each.counts.read for each in yard.parts(batch_id)]


@pytest.mark.test_all
def test_the_slowest_partition_is_shorter_by_what_it_gives_away(yard: Yard) -> None:
    yard.rows(430)
    plain = yard.run(yard.job(yard.step(cuts=SKEWED)))
    assert sizes(yard, plain.batch.id) == [10, 10, 10, 400]
    yard.sql("DELETE FROM done")
    yard.deploy()

    view = yard.run(yard.job(yard.step(cuts=SKEWED, steal=True), name="other"))

    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 431))
    read = sizes(yard, view.batch.id)
    assert (sum(read), max(read)) == (430, 205)  # a chunk of ten, and half of what was left
    assert set(yard.statuses(view.batch.id)) == {"COMPLETED"}
    assert view.tallies["step"].counts.read == 430
    assert view.alive == 0


@pytest.mark.test_all
def test_workers_share_what_one_partition_has(yard: Yard) -> None:
    """The slowest does half of what it would do alone: in rows, as seconds are the machine's."""
    yard.rows(400)
    workers: set[int] = set()
    rows: dict[int, int] = {}
    lock = threading.Lock()

    def chunk(ctx: Any, found: Any) -> None:
        yard.note(ctx, found)
        me = threading.get_ident()
        with lock:
            rows[me] = rows.get(me, 0) + len(found)
        idle = yard.sql("SELECT id FROM task_pending WHERE name = 'job:step' AND state = 'PENDING'")
        if idle is None:
            return
        with lock:
            if idle in workers or len(workers) >= 3:
                return
            workers.add(idle)
        begun = threading.Event()
        pool.submit(lambda: (begun.set(), yard.bench.execute([idle])))
        assert begun.wait(10)
        for _ in range(2_000):
            if (
                yard.sql("SELECT state = 'PENDING' FROM task_pending WHERE id = :id", id=idle)
                is not True
            ):
                return
        raise AssertionError("nobody took it")

    with ThreadPoolExecutor(4) as pool:
        begun = yard.start(yard.job(yard.step(chunk, cuts=(), steal=True)))
        yard.plan()
        yard.plan()
    yard.bench.drain()

    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 401))
    assert len(rows) >= 3
    assert max(rows.values()) <= 240


@pytest.mark.test_all
def test_the_rest_has_the_next_number_and_reduce_gets_all_by_number(yard: Yard) -> None:
    yard.rows(60)

    def keep(ctx: Any, rows: Any) -> None:
        ctx.state["ids"] = [*ctx.state.get("ids", []), *(row.id for row in rows)]

    def merge(ctx: Any, parts: Any) -> list[list[Any]]:
        return [[p.partition_no, p.low, p.high, p.state["ids"]] for p in parts]

    step = yard.step(keep, cuts=(), steal=True, reduce=merge, commit_every=4)

    result = yard.run(yard.job(step)).steps[0].result

    numbers = [part[0] for part in result]
    assert numbers == sorted(numbers) == list(range(1, len(result) + 1))
    assert len(result) > 2
    assert result[0][1] is None
    for _, low, high, ids in result:
        assert all((low is None or int(low) <= i) and (high is None or i < int(high)) for i in ids)
    assert sorted(i for part in result for i in part[3]) == list(range(1, 61))


@pytest.mark.test_all
def test_nothing_is_given_away_while_a_partition_waits(yard: Yard) -> None:
    """The first three find others that wait; the last divides what it has."""
    yard.rows(400)
    seen: dict[int, int] = {}

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        seen[ctx.partition_no] = yard.sql("SELECT count(*) FROM task_partition")

    view = yard.run(yard.job(yard.step(chunk, cuts=(101, 201, 301), steal=True)), together=False)
    assert view.batch.status is BatchStatus.COMPLETED
    assert [seen[number] for number in (1, 2, 3)] == [4, 4, 4]
    assert len(yard.parts(view.batch.id)) > 4


@pytest.mark.test_all
def test_without_it_no_partition_is_divided(yard: Yard) -> None:
    yard.rows(400)
    view = yard.run(yard.job(yard.step(cuts=())))
    assert len(yard.parts(view.batch.id)) == 1


@pytest.mark.test_all
def test_the_join_waits_for_the_rest(yard: Yard) -> None:
    """One dies, the other ends: the group has counted both, and the step fails with the number."""
    yard.rows(100)
    step = yard.step(cuts=(), steal=True, on_abort="continue", max_attempts=1)
    begun = yard.start(yard.job(step))
    yard.plan()
    yard.plan()
    assert yard.view(begun.batch_id).batch.status is BatchStatus.RUNNING
    assert yard.statuses(begun.batch_id) == ["COMPLETED", "PLANNED"]
    assert yard.sql("SELECT total FROM task_group ORDER BY id DESC LIMIT 1") == 2

    yard.reap(2)
    yard.bench.drain()

    view = yard.view(begun.batch_id)
    assert view.batch.status is BatchStatus.FAILED
    assert "1 of 2 partitions are complete (failed: 2)" in str(view.steps[0].error)

    view = yard.run(yard.job(step))  # a restart knows of the rest

    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
def test_a_crash_before_the_commit_leaves_the_range_whole(yard: Yard) -> None:
    yard.rows(100)
    begun = yard.start(yard.job(yard.step(cuts=(), steal=True, max_attempts=1)))
    with forbidden(yard.bench.engine, "task_group", "total > 1"):  # the last that giving writes
        yard.plan()
        yard.plan()
        assert [str(each.partition) for each in yard.parts(begun.batch_id)] == [
            "partition 1 (every key)"
        ]
        yard.bench.drain()
    assert yard.view(begun.batch_id).batch.status is BatchStatus.FAILED
    assert yard.sql("SELECT total FROM task_group ORDER BY id DESC LIMIT 1") == 1

    yard.completes(yard.step(cuts=(), steal=True))

    assert yard.done == list(range(1, 101))
    assert len(yard.parts(begun.batch_id)) > 1


@pytest.mark.test_all
def test_a_crash_after_it_is_gone_on_with_in_both_halves(yard: Yard) -> None:
    yard.rows(100)
    fails = [True]

    def chunk(ctx: Any, rows: Any) -> None:
        if fails and len(yard.parts(ctx.batch_id)) > 1:
            fails.clear()
            raise MemoryError
        yard.note(ctx, rows)

    view = yard.run(yard.job(yard.step(chunk, cuts=(), steal=True)))

    assert not fails
    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))


NONE = RowCounts()


class Table:
    """Two partitions of a hundred rows that run; ten rows of the first are done."""

    def __init__(self, yard: Yard, **options: Any) -> None:
        yard.rows(100)
        self.yard = yard
        self.job = yard.job(yard.step(cuts=(91,), steal=True, **options))
        self.batch_id = yard.start(self.job).batch_id
        yard.plan()
        self.parts = yard.parts(self.batch_id)
        ids = [each.task_id for each in self.parts if each.task_id]
        with yard.engine.begin() as connection:
            self.tasks = claim(connection, ids, claimer("job:step"), uuid4())
            for part, task in zip(self.parts, self.tasks, strict=True):
                assert (
                    partition_progress.start(connection, part.id, task.fence) is RunSignal.CONTINUE
                )
            self.tell(connection, RowCounts(10, 10))
        self.stealing = Stealing(self.job, self.job.steps["step"], None)

    def tell(self, connection: Connection, counts: RowCounts = NONE) -> RunSignal | None:
        """Write what a chunk of the first one writes; None: it is not its run any more."""
        place = {"after": ["10"], "state": {}}
        return partition_progress.progress(
            connection, self.parts[0].id, self.tasks[0].fence, counts, place
        )

    def give(self, connection: Connection) -> list[Partition]:
        """Give half of the first one away; the caller commits."""
        halves = self.stealing.halves(connection, self.parts[0].id, ChunkPace(CommitEvery(10)))
        self.stealing.give(connection, self.parts[0], halves)
        return halves

    def end(self, connection: Connection, number: int, event: Event = Event.SUCCEED) -> None:
        part, task = self.parts[number - 1], self.tasks[number - 1]
        if event is Event.SUCCEED:
            assert partition_progress.finish(connection, part.id, task.fence, Status.COMPLETED)
        assert settle_one(connection, ending(task, event, cause=Cause("E", "it")))

    @property
    def group(self) -> tuple[int, int, str | None]:
        """How many members the step's group has, how many succeeded, and what came of it."""
        with self.yard.engine.connect() as connection:
            row = connection.execute(
                text("SELECT total, succeeded, outcome FROM task_group ORDER BY id DESC LIMIT 1")
            ).one()
        return row.total, row.succeeded, row.outcome

    @property
    def owned(self) -> list[str]:
        return [str(each.partition) for each in self.yard.parts(self.batch_id)]


WHOLE = ["partition 1 (key < 91)", "partition 2 (91 <= key)"]
DIVIDED = ["partition 1 (key < 51)", "partition 2 (91 <= key)", "partition 3 (51 <= key < 91)"]


def test_what_is_given_away_is_there_when_the_commit_is(yard: Yard) -> None:
    table = Table(yard)
    with two(yard.engine) as (a, b):
        table.give(a)
        assert [
            str(each.partition) for each in partitions.find_by_batch(b, table.batch_id)
        ] == WHOLE
        assert table.tell(a) is RunSignal.CONTINUE
        a.commit()

    assert table.owned == DIVIDED
    assert [each.partition.rows for each in yard.parts(table.batch_id)] == [50, None, 40]
    assert table.group == (3, 0, None)


def test_who_lost_the_partition_gives_nothing_away(yard: Yard) -> None:
    table = Table(yard)
    yard.sql(
        "UPDATE task_pending SET attempt = attempt + 1, lease_token = gen_random_uuid()"
        " WHERE id = :id",
        id=table.parts[0].task_id,
    )
    with yard.engine.connect() as connection:
        table.give(connection)
        assert table.tell(connection) is None
    assert table.owned == WHOLE


def test_of_two_that_give_at_once_one_goes_on_as_it_is(yard: Yard) -> None:
    """Who looks after the commit finds the new one waiting: there is work for who is idle."""
    table = Table(yard)
    with two(yard.engine) as (a, b):
        table.give(a)
        with pytest.raises(NothingToStealError, match="instance is locked"):
            table.give(b)
        table.tell(a)
        a.commit()
        b.rollback()
        assert table.stealing.halves(b, table.parts[0].id, ChunkPace(CommitEvery(10))) == []
        with pytest.raises(NothingToStealError, match="Idle workers have work"):
            table.stealing.give(b, table.parts[0], [])


def test_another_that_ends_meanwhile_is_counted_beside_the_new_one(yard: Yard) -> None:
    table = Table(yard)
    with two(yard.engine) as (a, b):
        table.give(a)
        waiting = blocked(yard.engine, b, a, lambda c: table.end(c, 2))
        table.tell(a)
        a.commit()
        waiting.result()
        b.commit()
    assert table.group == (3, 1, None)


def test_nothing_is_added_to_a_step_that_has_enough(yard: Yard) -> None:
    """The other one ends first, and that decides; the join itself has not run yet."""
    table = Table(yard, join="any")
    with two(yard.engine) as (a, b):
        table.end(b, 2)
        waiting = blocked(yard.engine, a, b, lambda c: refused(table, c))
        b.commit()
        waiting.result()
    assert table.owned == WHOLE
    assert table.group == (2, 1, "SUCCEEDED")


def refused(table: Table, connection: Connection) -> None:
    with pytest.raises(NothingToStealError, match="join is called"):
        table.give(connection)
    connection.rollback()


def test_a_stop_waits_for_what_is_given_and_stops_that_too(yard: Yard) -> None:
    table = Table(yard)
    with two(yard.engine) as (a, b):
        table.give(a)
        waiting = blocked(yard.engine, b, a, lambda c: stop_job(c, table.batch_id))
        table.tell(a)
        a.commit()
        assert waiting.result() == 2
        b.commit()
    states = yard.bench.states([each.task_id or 0 for each in yard.parts(table.batch_id)])
    assert states == ["RUNNING", "RUNNING", "CANCELLED"]


def test_a_step_that_stops_divides_nothing(yard: Yard) -> None:
    table = Table(yard)
    yard.stop(table.batch_id)
    with yard.engine.connect() as connection, pytest.raises(NothingToStealError):
        table.give(connection)


@pytest.mark.test_all
@pytest.mark.parametrize(
    "planner",
    [
        Hash(parts=1),
        KeyList({1: ["place 1", None]}, auto_assign=True),
        Views(Even(parts=1), "todo_part"),
    ],
    ids=["hash", "values", "view"],
)
def test_what_is_no_range_of_keys_is_kept_whole(yard: Yard, planner: Any) -> None:
    yard.rows(100)
    source = TODO if not isinstance(planner, KeyList) else Source("todo", "place")
    view = yard.completes(yard.step(planner=planner, source=source, steal=True))
    assert len(yard.parts(view.batch.id)) == 1
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
def test_keys_that_many_rows_have_are_never_divided(yard: Yard) -> None:
    yard.rows(100)
    yard.sql(
        "UPDATE todo SET place = CASE WHEN id <= 40 THEN 'a' WHEN id <= 80 THEN 'b' ELSE 'c' END"
    )
    everything = KeyRanges([(None, None)])
    view = yard.completes(yard.step(planner=everything, source=Source("todo", "place"), steal=True))
    assert yard.done == list(range(1, 101))
    owned = [str(each.partition) for each in yard.parts(view.batch.id)]
    assert owned == ["partition 1 (key < 'c')", "partition 2 ('c' <= key)"]


@pytest.mark.test_all
@pytest.mark.parametrize("key_type", COLUMNS)
@given(data=st.data())
@settings(
    max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_each_row_has_one_owner(
    connection: Connection, key_type: KeyType, data: st.DataObject
) -> None:
    """Who gives half away owns still what it has done."""
    keys = data.draw(some_keys(key_type))
    make_table(connection, COLUMNS[key_type])
    fill(connection, COLUMNS[key_type], keys)
    partitions.remove(connection, "p#1", started=True)
    partitions.insert(
        connection, "p#1", Even(parts=2).plan(connection, ROWS), batch_id=1, step="step"
    )
    stealing = Stealing(JOB, JOB.steps["step"], None)

    for _ in range(data.draw(st.integers(1, 4))):
        stored = data.draw(st.sampled_from(partitions.find_by_program(connection, "p#1")))
        own = keys_owned(connection, ROWS, stored.partition, key_type)
        there = histogram(connection, own)
        if not there or stored.partition.range is None or data.draw(st.booleans()):
            into = Even(parts=data.draw(st.integers(1, 3)))
            replan(connection, "p#1", ROWS, into, {stored.partition.number})
            continue
        last = data.draw(st.sampled_from(sorted(there)))  # type: ignore[type-var]
        begun = text("UPDATE task_partition SET checkpoint = CAST(:it AS jsonb) WHERE id = :id")
        place = json.dumps({"after": [write_key(last), "1"]})
        connection.execute(begun, {"it": place, "id": stored.id})
        halves = stealing.halves(connection, stored.id, Greedy(CommitEvery(1)))
        if halves:
            first = 1 + max(
                each.partition.number for each in partitions.find_by_program(connection, "p#1")
            )
            share(connection, stored, halves, first)
            kept = partitions.get(connection, stored.id)
            assert kept is not None
            assert kept.partition.range is not None
            assert last in kept.partition.range

    plan = Repository("p#1").plan(connection, ROWS)
    assert problems(connection, ROWS, plan) == []
    assert owners(connection, ROWS, plan) == [1] * len(keys)


def nothing(ctx: Any, rows: Any) -> None: ...


JOB = BatchJob(
    "any",
    [Step("step", ROWS, chunk=nothing, steal=True)],
    registry=Registry(),
    tuning=RunTuning(steal_look_every_s=0, measure_every_s=0),
)


# -- the operator's verb


def replanned(table: Waiting, connection: Connection, divide: int = 3) -> int:
    return replan_job(connection, table.batch_id, "step", divide=divide)


class Waiting:
    """Two partitions of fifty rows that wait, of a job that is known."""

    def __init__(self, yard: Yard, **options: Any) -> None:
        yard.rows(100)
        self.job = yard.job(yard.step(cuts=(51,), **options))
        JOBS["job"] = self.job
        self.batch_id = yard.start(self.job).batch_id
        yard.plan()


@pytest.fixture
def waiting(yard: Yard) -> Iterator[Waiting]:
    yield Waiting(yard)
    del JOBS["job"]


@pytest.mark.test_all
def test_what_waits_is_divided_beside_what_runs(yard: Yard, waiting: Waiting) -> None:
    first = yard.parts(waiting.batch_id)[0]
    with two(yard.engine) as (a, b):
        (task,) = claim(a, [first.task_id or 0], claimer("job:step"), uuid4())
        assert partition_progress.start(a, first.id, task.fence) is RunSignal.CONTINUE
        a.commit()

        assert replanned(waiting, b) == 2
        b.commit()

        assert settle_one(a, ending(task, Event.SNOOZE, wait=timedelta(0)))
        a.commit()
    assert [str(each.partition) for each in yard.parts(waiting.batch_id)] == [
        "partition 1 (key < 51)",
        "partition 2 (51 <= key < 67)",
        "partition 3 (67 <= key < 84)",
        "partition 4 (84 <= key)",
    ]
    yard.bench.drain()

    view = yard.view(waiting.batch_id)
    assert view.batch.status is BatchStatus.COMPLETED
    assert (view.tallies["step"].completed, yard.done) == (4, list(range(1, 101)))
    assert (
        yard.sql("SELECT what ->> 'step' FROM task_audit WHERE action = 'replan batch'") == "step"
    )


def test_one_that_starts_then_waits_and_has_a_smaller_range(yard: Yard, waiting: Waiting) -> None:
    first = yard.parts(waiting.batch_id)[0]
    with two(yard.engine) as (a, b):
        (task,) = claim(b, [first.task_id or 0], claimer("job:step"), uuid4())
        b.commit()
        assert replanned(waiting, a, 2) == 2
        starts = blocked(
            yard.engine, b, a, lambda c: partition_progress.start(c, first.id, task.fence)
        )
        a.commit()

        assert starts.result() is RunSignal.CONTINUE
        seen = partitions.get(b, first.id)
        assert seen is not None
        assert str(seen.partition) == "partition 1 (key < 26)"


@pytest.mark.test_all
def test_what_does_not_run_is_not_divided(yard: Yard, waiting: Waiting) -> None:
    with yard.engine.connect() as connection:
        with pytest.raises(BatchStateError, match=r"no step nothing\. Name one of: step\."):
            replan_job(connection, waiting.batch_id, "nothing", divide=2)
        connection.rollback()
        yard.bench.drain()
        with pytest.raises(BatchStateError, match="is COMPLETED, its step step COMPLETED: no part"):
            replanned(waiting, connection)


def test_hashes_that_wait_are_not_divided(yard: Yard) -> None:
    try:
        table = Waiting(yard, planner=Hash(parts=2))
        divided = pytest.raises(PlanError, match="cannot be divided")
        with yard.engine.connect() as connection, divided:
            replanned(table, connection)
    finally:
        del JOBS["job"]
