"""Two transactions on one instance, step by step: each waits for the other, and one decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from tasks_app.batch.control import abandon_job, restart_job, start_job, stop_job
from tasks_app.batch.job import JOBS, BatchJob
from tasks_app.batch.progress import JobProgress
from tasks_app.domain.batch.policies import Move
from tasks_app.domain.batch.records import BatchStatus, JobRun, identity
from tasks_app.domain.errors import BatchStateError
from tasks_app.domain.partition.records import RowCounts, Status
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.pool.batch import instances, partition_progress
from tasks_app.pool.batch.partition_progress import RunSignal
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tests.batch.yard import Ranges, Yard
from tests.factory import LEASE, claimer, ending
from tests.pool.interleave import blocked, two


class Run:
    """A run of a partition, as a worker has it; each step is one call."""

    def __init__(self, yard: Yard, batch_id: int, number: int = 1) -> None:
        part = yard.parts(batch_id)[number - 1]
        self.part_id = part.id
        with yard.engine.begin() as connection:
            (task,) = claim(connection, [part.task_id or 0], claimer("job:step"), uuid4())
            assert partition_progress.start(connection, part.id, task.fence) is RunSignal.CONTINUE
        self.task: ClaimedTask = task

    def tell(self, connection: Connection, *, last: bool = False) -> RunSignal | None:
        fence, place = self.task.fence, {"after": ["1"]}
        return partition_progress.progress(
            connection, self.part_id, fence, RowCounts(1, 1), place, last=last
        )

    def do_the_last_chunk(self, connection: Connection) -> RunSignal | None:
        word = self.tell(connection, last=True)
        if word is not None:
            assert partition_progress.finish(
                connection, self.part_id, self.task.fence, Status.COMPLETED
            )
        return word

    def end(self, connection: Connection) -> None:
        assert settle_one(connection, ending(self.task)) is not None


@pytest.fixture
def job(yard: Yard) -> Iterator[BatchJob]:
    """A job that operators know, with two partitions of ten rows."""
    yard.rows(20)
    job = yard.job(yard.step(cuts=(11,)), yard.step(name="next", cuts=()))
    JOBS[job.name] = job
    yield job
    JOBS.pop(job.name, None)


def begun(yard: Yard, job: BatchJob) -> int:
    run = yard.start(job)
    yard.plan()
    return run.batch_id


def failed(yard: Yard, job: BatchJob) -> int:
    batch_id = begun(yard, job)
    yard.reap(1)
    yard.bench.drain()
    assert yard.view(batch_id).batch.status is BatchStatus.FAILED
    return batch_id


@contextmanager
def impatient(connection: Connection) -> Iterator[None]:
    """What is done inside waits for nobody."""
    connection.execute(text("SET LOCAL lock_timeout = '3s'"))
    yield


def tasks_named(yard: Yard, name: str) -> int:
    """How many tasks of a name there ever were."""
    return int(yard.sql("SELECT count(*) FROM task_all WHERE name = :name", name=name))


@pytest.mark.test_all
def test_a_stop_waits_for_the_last_chunk_and_finds_it_complete(yard: Yard, job: BatchJob) -> None:
    batch_id = begun(yard, job)
    first, second = Run(yard, batch_id, 1), Run(yard, batch_id, 2)
    with two(yard.engine) as (a, b):
        first.do_the_last_chunk(a)
        stop = blocked(yard.engine, b, a, lambda c: stop_job(c, batch_id))
        with impatient(a):
            first.end(a)
        a.commit()
        assert stop.result() == 1  # the other one runs still
        b.commit()
        assert second.tell(a) is RunSignal.STOP
        a.rollback()
        second.do_the_last_chunk(a)
        second.end(a)
        a.commit()
    yard.bench.drain()

    view = yard.view(batch_id)
    assert view.batch.status is BatchStatus.STOPPED
    assert {step.step: step.status for step in view.steps} == {
        "step": "COMPLETED",
        "next": "WAITING",
    }
    again = yard.go_on_with(job, batch_id)
    assert again.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 21))  # of the second step alone


@pytest.mark.test_all
def test_a_last_chunk_waits_for_a_stop_and_ends_its_partition(yard: Yard, job: BatchJob) -> None:
    batch_id = begun(yard, job)
    run = Run(yard, batch_id)
    with two(yard.engine) as (a, b):
        assert stop_job(a, batch_id) == 1
        last = blocked(yard.engine, b, a, run.do_the_last_chunk)
        a.commit()
        assert last.result() is RunSignal.CONTINUE  # it began before the stop was committed
        run.end(b)
        b.commit()
    yard.bench.drain()

    assert yard.view(batch_id).batch.status is BatchStatus.STOPPED
    assert yard.statuses(batch_id) == ["COMPLETED", "STOPPED"]


@pytest.mark.test_all
def test_of_two_restarts_at_once_one_begins(yard: Yard, job: BatchJob) -> None:
    batch_id = failed(yard, job)
    with two(yard.engine) as (a, b):
        assert restart_job(a, batch_id) == JobRun(batch_id, 2, new=False)
        other = blocked(yard.engine, b, a, lambda c: restart_job(c, batch_id))
        a.commit()
        with pytest.raises(BatchStateError, match="is RUNNING"):
            other.result()
        b.rollback()
    yard.bench.drain()

    view = yard.view(batch_id)
    assert (view.batch.status, view.batch.run) == (BatchStatus.COMPLETED, 2)
    assert tasks_named(yard, "job:step:plan") == 2


@pytest.mark.test_all
@pytest.mark.parametrize("commits", [True, False])
def test_of_two_starts_of_a_failed_one_one_begins(yard: Yard, job: BatchJob, commits: bool) -> None:
    batch_id = failed(yard, job)
    with two(yard.engine) as (a, b):
        assert instances.lock_same(a, job.name, identity({}))
        other = blocked(yard.engine, b, a, lambda c: start_job(c, job))
        assert start_job(a, job) == JobRun(batch_id, 2, new=False)
        if commits:
            a.commit()
            with pytest.raises(BatchStateError, match="is RUNNING"):
                other.result()
            b.rollback()
        else:
            a.rollback()
            assert other.result() == JobRun(batch_id, 2, new=False)
            b.commit()
    yard.bench.drain()

    assert yard.view(batch_id).batch.status is BatchStatus.COMPLETED
    assert tasks_named(yard, "job:step:plan") == 2


@pytest.mark.parametrize("commits", [True, False])
def test_of_two_starts_of_a_new_one_one_makes_it(yard: Yard, job: BatchJob, commits: bool) -> None:
    with two(yard.engine) as (a, b):
        first = start_job(a, job)
        other = blocked(yard.engine, b, a, lambda c: start_job(c, job))
        if commits:
            a.commit()
            with pytest.raises(BatchStateError, match="is RUNNING") as refused:
                other.result()
            assert refused.value.batch_id == first.batch_id
            b.rollback()
        else:
            a.rollback()
            made = other.result()
            assert made.new
            assert made.batch_id != first.batch_id
            b.commit()

    assert yard.sql("SELECT count(*) FROM task_batch") == 1
    assert tasks_named(yard, "job:step:plan") == 1


@pytest.mark.test_all
def test_a_start_that_waits_for_an_abandonment_begins_anew(yard: Yard, job: BatchJob) -> None:
    batch_id = failed(yard, job)
    with two(yard.engine) as (a, b):
        abandon_job(a, batch_id)
        other = blocked(yard.engine, b, a, lambda c: start_job(c, job))
        a.commit()
        made = other.result()
        b.commit()
    assert made.new
    assert made.batch_id != batch_id


@pytest.mark.test_all
def test_two_last_partitions_make_one_join_and_one_next_step(yard: Yard, job: BatchJob) -> None:
    batch_id = begun(yard, job)
    first, second = Run(yard, batch_id, 1), Run(yard, batch_id, 2)
    with two(yard.engine) as (a, b):
        first.do_the_last_chunk(a)
        second.do_the_last_chunk(b)
        first.end(a)
        other = blocked(yard.engine, b, a, second.end)
        a.commit()
        other.result()
        assert yard.sql("SELECT count(*) FROM task_pending WHERE name = 'job:step:join'") == 0
        b.commit()
    yard.bench.drain()

    assert yard.view(batch_id).batch.status is BatchStatus.COMPLETED
    assert tasks_named(yard, "job:step:join") == 1
    assert tasks_named(yard, "job:next:plan") == 1
    assert yard.done == list(range(1, 21))


def test_a_step_that_ends_and_a_last_chunk_are_in_no_deadlock(yard: Yard, job: BatchJob) -> None:
    """Both lock the partition before its task and its group."""
    batch_id = begun(yard, job)
    run = Run(yard, batch_id, 2)

    def fail(connection: Connection) -> None:
        batch = instances.lock(connection, batch_id)
        assert batch is not None
        JobProgress(job, connection, batch).carry_out(job.steps["step"], Move.FAIL, error="no")

    with two(yard.engine) as (a, b):
        run.do_the_last_chunk(a)
        step = blocked(yard.engine, b, a, fail)
        with impatient(a):
            run.end(a)
        a.commit()
        step.result()
        b.commit()
    yard.bench.drain()

    assert yard.view(batch_id).batch.status is BatchStatus.FAILED
    assert yard.statuses(batch_id) == ["STOPPED", "COMPLETED"]


@pytest.mark.test_all
def test_what_is_being_planned_is_not_abandoned(yard: Yard) -> None:
    yard.rows(20)
    answers: list[Any] = []

    def planner(_params: Any) -> Any:
        if not answers:
            look()
        return Ranges((11,))

    def look() -> None:
        with yard.engine.connect() as connection:
            stop_job(connection, 1)
            answers.append(connection.execute(text("SELECT status FROM task_batch")).scalar())
            try:
                abandon_job(connection, 1)
            except BatchStateError as refusal:
                answers.append(str(refusal))
            connection.rollback()

    yard.sql("ALTER TABLE task_batch ALTER COLUMN id RESTART")
    job = yard.job(yard.step(planner=planner))
    batch_id = yard.start(job).batch_id
    assert batch_id == 1
    yard.plan()

    assert answers[0] == "STOPPING"
    assert "still runs. Stop it first" in answers[1]
    yard.bench.drain()
    assert yard.view(batch_id).batch.status is BatchStatus.COMPLETED


def test_an_abandonment_waits_for_a_plan_that_commits_now(yard: Yard, job: BatchJob) -> None:
    batch_id = yard.start(job).batch_id
    with two(yard.engine) as (a, b):
        assert instances.lock(a, batch_id)  # as the plan does before it enters its partitions
        other = blocked(yard.engine, b, a, lambda c: abandon_job(c, batch_id))
        a.commit()
        with pytest.raises(BatchStateError, match="still runs"):
            other.result()
        b.rollback()


def test_no_lease_is_taken_between_the_last_look_and_the_commit(yard: Yard, job: BatchJob) -> None:
    batch_id = begun(yard, job)
    run = Run(yard, batch_id)
    late = datetime.now(UTC) + timedelta(hours=1)
    with two(yard.engine) as (a, b):
        assert run.tell(a) is RunSignal.CONTINUE
        assert rescue_expired(b, lease=LEASE, max_crashes=5, now=late) == {}
        b.commit()
        a.commit()
        assert rescue_expired(b, lease=LEASE, max_crashes=5, now=late) == {
            run.task.task_id: "PENDING"
        }
        b.commit()
        assert run.tell(a) is None


def test_a_cancel_waits_for_a_chunk_and_the_next_one_hears_it(yard: Yard, job: BatchJob) -> None:
    batch_id = begun(yard, job)
    run = Run(yard, batch_id)
    with two(yard.engine) as (a, b):
        assert run.tell(a) is RunSignal.CONTINUE
        other = blocked(yard.engine, b, a, lambda c: cancel(c, run.task.task_id))
        a.commit()
        assert other.result() == "requested"
        b.commit()
        assert run.tell(a) is RunSignal.STOP
