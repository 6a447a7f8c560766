"""Operators requeue tasks of instances: what was decided stays decided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.batch.control import abandon_job
from tasks_app.domain.batch.records import BatchStatus, PartResult
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tests.batch.yard import Yard
from tests.factory import claimed_task, ending

pytestmark = pytest.mark.test_all


def requeued(yard: Yard, name: str) -> list[int]:
    """Requeue all tasks of a name that are over; return them."""
    with yard.engine.begin() as connection:
        found = connection.execute(
            text("SELECT id FROM task_all WHERE name = :name ORDER BY id"), {"name": name}
        )
        ids = list(found.scalars())
        for task_id in ids:
            assert requeue(connection, task_id) is Requeued.REQUEUED
    return ids


def merging(calls: list[int]) -> Any:
    """A reduce that is noted."""

    def merge(ctx: Any, parts: Iterator[PartResult]) -> int:
        calls.append(ctx.run)
        return sum(part.counts.read for part in parts)

    return merge


@pytest.mark.parametrize("which", ["", ":plan", ":join", ":reduce"])
def test_an_instance_that_is_complete_stays_so(yard: Yard, which: str) -> None:
    yard.rows(100)
    merged: list[int] = []
    view = yard.run(yard.job(yard.step(reduce=merging(merged))))
    assert view.batch.status is BatchStatus.COMPLETED

    ids = requeued(yard, "job:step" + which)
    yard.bench.drain()

    assert set(yard.bench.states(ids)) == {"SKIPPED"}
    after = yard.view(view.batch.id)
    assert (after.batch, after.steps) == (view.batch, view.steps)
    assert merged == [1]
    assert yard.done == list(range(1, 101))


@pytest.mark.parametrize("which", [":plan", ":join"])
def test_a_step_that_is_complete_stays_so_while_the_next_one_runs(yard: Yard, which: str) -> None:
    yard.rows(100)
    merged: list[int] = []
    job = yard.job(yard.step(reduce=merging(merged)), yard.step(name="next"))
    begun = yard.start(job)
    while yard.sql("SELECT count(*) FROM task_pending WHERE name = 'job:next:plan'") == 0:
        yard.plan()

    ids = requeued(yard, "job:step" + which)
    yard.bench.execute(ids)

    assert set(yard.bench.states(ids)) == {"SKIPPED"}
    yard.bench.drain()
    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED
    assert merged == [1]
    assert yard.done == sorted([*range(1, 101)] * 2)


def test_a_join_that_has_decided_does_not_fail_the_step_that_goes_on(yard: Yard) -> None:
    """The partitions' join, once more, while reduce waits."""
    yard.rows(100)
    merged: list[int] = []
    begun = yard.start(yard.job(yard.step(reduce=merging(merged))))
    while yard.sql("SELECT count(*) FROM task_pending WHERE name = 'job:step:reduce'") == 0:
        yard.plan()

    ids = requeued(yard, "job:step:join")
    yard.bench.execute(ids)

    assert yard.bench.states(ids) == ["SKIPPED"]
    yard.bench.drain()
    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED
    assert merged == [1]


@pytest.mark.parametrize("which", ["", ":plan", ":join", ":reduce"])
def test_an_instance_that_was_abandoned_stays_so(yard: Yard, which: str) -> None:
    """And does not stand in the way of the one that has its parameters now."""
    yard.rows(100)

    def merge(ctx: Any, parts: Iterator[PartResult]) -> int:
        raise TypeError

    job = yard.job(yard.step(reduce=merge, max_attempts=1))
    failed = yard.run(job)
    assert failed.batch.status is BatchStatus.FAILED
    with yard.engine.begin() as connection:
        abandon_job(connection, failed.batch.id)

    ids = requeued(yard, "job:step" + which)
    yard.bench.execute(ids)

    assert set(yard.bench.states(ids)) == {"SKIPPED"}
    assert yard.view(failed.batch.id).batch.status is BatchStatus.ABANDONED
    assert yard.start(job).new


def die(yard: Yard, name: str) -> None:
    """Let a task of this name fail for good, as if it had killed its process each time."""
    with yard.engine.begin() as connection:
        pending = text("SELECT id FROM task_pending WHERE name = :name")
        task_id = connection.execute(pending, {"name": name}).scalar_one()
        task = claimed_task(connection, task_id, name=name)
        assert settle_one(connection, ending(task, Event.FAIL, cause=Cause("died", "signal 9")))


@pytest.mark.parametrize("abandoned", [True, False])
def test_a_lost_instance_goes_on_with_its_plan_unless_it_was_abandoned(
    yard: Yard, abandoned: bool
) -> None:
    """Plan and join lie in the error pool."""
    yard.rows(100)
    begun = yard.start(yard.job(yard.step()))
    die(yard, "job:step:plan")
    die(yard, "job:step:join")
    assert yard.view(begun.batch_id).is_lost
    if abandoned:
        with yard.engine.begin() as connection:
            abandon_job(connection, begun.batch_id)

    requeued(yard, "job:step:plan")
    yard.bench.drain()

    status = yard.view(begun.batch_id).batch.status
    assert status is (BatchStatus.ABANDONED if abandoned else BatchStatus.COMPLETED)
    assert yard.done == ([] if abandoned else list(range(1, 101)))


def test_a_reduce_that_is_requeued_after_its_failure_completes_nothing(yard: Yard) -> None:
    """Its join has failed the step: a restart is the way on."""
    yard.rows(100)
    merged: list[int] = []

    def merge(ctx: Any, parts: Iterator[PartResult]) -> int:
        merged.append(ctx.run)
        if len(merged) == 1:
            raise TypeError
        return 0

    job = yard.job(yard.step(reduce=merge, max_attempts=1))
    failed = yard.run(job)
    assert failed.batch.status is BatchStatus.FAILED

    ids = requeued(yard, "job:step:reduce")
    yard.bench.drain()

    assert yard.bench.states(ids) == ["SKIPPED"]
    assert yard.view(failed.batch.id).batch.status is BatchStatus.FAILED
    assert yard.run(job).batch.status is BatchStatus.COMPLETED
    assert merged == [1, 2]
