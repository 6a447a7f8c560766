"""Tasks around the partitions that fail for good, are cancelled, swept, or requeued by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from tasks_app.domain.batch.records import BatchStatus, BatchView, StepStatus
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.batch import instances, partition_runs
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.leader.rescuer import end_lost_batches
from tests.batch.yard import Yard
from tests.factory import claimer, ending
from tests.pool.interleave import two

ALL = list(range(1, 101))


@pytest.fixture
def database(yard: Yard) -> Iterator[Database]:
    yard.rows(100)
    made = Database(yard.bench.url)
    yield made
    made.dispose()


def task_of(yard: Yard, word: str, pool: str = "task_pending") -> int:
    """The newest task of this name."""
    name = f"job:step{word}"
    task_id = yard.sql(f"SELECT max(id) FROM {pool} WHERE name = :name", name=name)
    assert task_id is not None, f"no {name} in {pool}"
    return int(task_id)


def fails(yard: Yard, task_id: int) -> None:
    """It dies for good, as one that killed its process each time."""
    with yard.engine.begin() as connection:
        name = connection.scalar(text(f"SELECT name FROM task_pending WHERE id = {task_id}"))
        (task,) = claim(connection, [task_id], claimer(str(name)), uuid4())
        cause = Cause("process died", "signal 9")
        assert settle_one(connection, ending(task, Event.FAIL, cause=cause))


def cancelled(yard: Yard, task_id: int) -> None:
    with yard.engine.begin() as connection:
        cancel(connection, task_id)


def disabled(yard: Yard, task_id: int) -> None:
    """Somebody disables it by hand, and the scan sweeps it."""
    yard.sql("UPDATE task_pending SET enabled = false WHERE id = :id", id=task_id)
    yard.bench.drain()


def deleted(yard: Yard, task_id: int) -> None:
    yard.sql("DELETE FROM task_pending WHERE id = :id", id=task_id)


def requeued(yard: Yard, task_id: int) -> None:
    with yard.engine.begin() as connection:
        requeue(connection, task_id)
    yard.bench.execute([task_id])
    yard.bench.drain()


def reduced(yard: Yard) -> Any:
    """A job of one step with a reduce."""
    return yard.job(yard.step(reduce=lambda ctx, parts: sum(p.counts.read for p in parts)))


def go_until(yard: Yard, job: Any, word: str, params: Any = None) -> int:
    """Start the job and carry out what there is until the task of this name waits."""
    batch_id = yard.start(job, params).batch_id
    for _ in range(5):
        if yard.sql("SELECT count(*) FROM task_pending WHERE name = :n", n=f"job:step{word}"):
            return batch_id
        yard.plan()
    raise AssertionError(word)


def step_of(view: BatchView) -> tuple[StepStatus, str]:
    (step,) = view.steps
    return step.status, str(step.error)


@pytest.mark.test_all
@pytest.mark.parametrize("word", [":plan", ":join", ":reduce"])
@pytest.mark.parametrize(
    ("end", "told"),
    [
        (fails, "ended FAILED: process died: signal 9. "),
        (cancelled, "ended CANCELLED. "),
        (disabled, "ended SKIPPED: disabled: "),
        (deleted, "Its tasks are gone. "),
    ],
)
def test_a_step_whose_task_ends_for_good_has_failed_and_goes_on_with_a_restart(
    yard: Yard, database: Database, word: str, end: Callable[..., None], told: str
) -> None:
    job = reduced(yard)
    batch_id = go_until(yard, job, word)

    end(yard, task_of(yard, word))
    yard.bench.drain()
    end_lost_batches(database)

    view = yard.view(batch_id)
    status, error = step_of(view)
    assert (view.batch.status, status) == (BatchStatus.FAILED, StepStatus.FAILED)
    assert told in error
    assert view.batch.error == "failed: step"
    assert not {"PLANNED", "RUNNING"} & set(yard.statuses(batch_id))
    again = yard.go_on_with(job, batch_id)
    assert (again.batch.status, again.steps[0].result) == (BatchStatus.COMPLETED, 100)
    assert yard.done == ALL


@pytest.mark.test_all
@pytest.mark.parametrize("told", ["fail", "cancel"])
def test_a_partition_whose_task_ends_in_the_pool_ends_the_step(yard: Yard, told: str) -> None:
    yard.rows(100)
    job = yard.job(yard.step())
    batch_id = yard.start(job).batch_id
    yard.plan()

    (fails if told == "fail" else cancelled)(yard, task_of(yard, ""))
    yard.bench.drain()

    view = yard.view(batch_id)
    assert (view.batch.status, step_of(view)[0]) == (BatchStatus.FAILED, StepStatus.FAILED)
    assert yard.statuses(batch_id)[3] == ("FAILED" if told == "fail" else "STOPPED")
    assert yard.go_on_with(job, batch_id).batch.status is BatchStatus.COMPLETED
    assert yard.done == ALL


@pytest.mark.test_all
@pytest.mark.parametrize(("word", "end"), [("", cancelled), ("", fails), (":plan", fails)])
def test_a_task_that_is_retried_by_hand_when_its_step_has_ended_changes_nothing(
    yard: Yard, word: str, end: Callable[..., None]
) -> None:
    """Only a restart of the instance goes on; before it and after it."""
    yard.rows(100)
    job = yard.job(yard.step())
    batch_id = go_until(yard, job, word)
    task_id = task_of(yard, word)
    end(yard, task_id)
    yard.bench.drain()
    before, parts = yard.view(batch_id), yard.parts(batch_id)

    requeued(yard, task_id)

    assert yard.bench.state(task_id) == "SKIPPED"
    assert (yard.view(batch_id).batch, yard.view(batch_id).steps) == (before.batch, before.steps)
    assert yard.parts(batch_id) == parts
    assert yard.go_on_with(job, batch_id).batch.status is BatchStatus.COMPLETED
    requeued(yard, task_id)
    assert yard.done == ALL


@pytest.mark.test_all
def test_a_partition_that_is_retried_by_hand_while_its_step_goes_on_is_done(yard: Yard) -> None:
    yard.rows(100)
    batch_id = yard.start(yard.job(yard.step(on_abort="continue"))).batch_id
    yard.plan()
    task_id = task_of(yard, "")
    fails(yard, task_id)

    requeued(yard, task_id)

    assert yard.view(batch_id).batch.status is BatchStatus.COMPLETED
    assert yard.done == ALL


@pytest.mark.test_all
def test_a_join_that_is_retried_by_hand_goes_on_unless_its_step_was_ended(
    yard: Yard, database: Database
) -> None:
    job = yard.job(yard.step())
    first = go_until(yard, job, ":join")
    fails(yard, task_of(yard, ":join"))
    requeued(yard, task_of(yard, ":join", "task_error"))
    assert yard.view(first).batch.status is BatchStatus.COMPLETED

    second = go_until(yard, job, ":join", {"other": 1})
    fails(yard, task_of(yard, ":join"))
    assert end_lost_batches(database) == [second]
    requeued(yard, task_of(yard, ":join", "task_error"))

    assert yard.view(second).batch.status is BatchStatus.FAILED


@pytest.mark.test_all
@pytest.mark.parametrize("word", [":plan", ":reduce"])
def test_what_has_done_its_work_and_is_requeued_does_it_no_second_time(
    yard: Yard, word: str
) -> None:
    yard.rows(100)
    merged: list[int] = []
    job = yard.job(yard.step(reduce=lambda ctx, parts: merged.append(len(list(parts)))))
    batch_id = go_until(yard, job, word)
    task_id = task_of(yard, word)
    yard.plan()

    requeued(yard, task_id)

    assert yard.view(batch_id).batch.status is BatchStatus.COMPLETED
    assert yard.done == ALL
    assert merged == [4]
    assert yard.sql("SELECT count(*) FROM task_group") == 3


@pytest.mark.test_all
def test_what_is_at_work_is_left_alone(yard: Yard, database: Database) -> None:
    batch_id = yard.start(reduced(yard)).batch_id
    while yard.sql("SELECT count(*) FROM task_pending"):
        assert end_lost_batches(database) == []
        yard.plan()

    assert end_lost_batches(database) == []
    assert yard.view(batch_id).batch.status is BatchStatus.COMPLETED


@pytest.mark.test_all
def test_one_of_two_steps_is_ended_and_the_other_goes_on(yard: Yard, database: Database) -> None:
    job = yard.job(yard.step(), yard.step(name="other", after=[]))
    batch_id = yard.start(job).batch_id
    fails(yard, task_of(yard, ":plan"))
    fails(yard, task_of(yard, ":join"))

    assert end_lost_batches(database) == [batch_id]

    view = yard.view(batch_id)
    assert view.batch.status is BatchStatus.RUNNING
    assert {s.step: s.status for s in view.steps} == {"step": "FAILED", "other": "PLANNING"}
    yard.bench.drain()
    assert yard.view(batch_id).batch.status is BatchStatus.FAILED
    assert yard.done == ALL


@pytest.mark.test_all
def test_an_instance_that_was_to_stop_is_stopped(yard: Yard, database: Database) -> None:
    job = yard.job(yard.step())
    batch_id = go_until(yard, job, ":join")
    yard.stop(batch_id)
    cancelled(yard, task_of(yard, ":join"))

    assert end_lost_batches(database) == [batch_id]

    assert yard.view(batch_id).batch.status is BatchStatus.STOPPED
    assert yard.go_on_with(job, batch_id).batch.status is BatchStatus.COMPLETED


@pytest.mark.test_all
def test_who_restarts_it_just_now_is_neither_waited_for_nor_undone(
    yard: Yard, database: Database
) -> None:
    job = yard.job(yard.step())
    batch_id = go_until(yard, job, ":join")
    fails(yard, task_of(yard, ":join"))

    with two(yard.engine) as (a, b):
        assert partition_runs.find_batches_with_lost_steps(b, 10) == [batch_id]
        instances.lock(a, batch_id)
        assert end_lost_batches(database) == []
        assert partition_runs.lock_active_batch(b, batch_id) is None
        a.rollback()
        b.rollback()
    yard.start(job)

    assert end_lost_batches(database) == []
    yard.bench.drain()
    assert yard.view(batch_id).batch.status is BatchStatus.COMPLETED


def test_whoever_maintains_looks_after_them(yard: Yard, database: Database) -> None:
    batch_id = go_until(yard, yard.job(yard.step()), ":join")
    cancelled(yard, task_of(yard, ":join"))

    Maintainer(database).run_if_due()

    assert yard.view(batch_id).batch.status is BatchStatus.FAILED
