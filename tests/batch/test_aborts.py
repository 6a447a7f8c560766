"""Batches that are aborted, lost a task, or are requeued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from tasks_app.domain.batch.records import BatchStatus, BatchView, PartResult, StepStatus
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.batch import instances, partition_runs
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.leader.rescuer import end_lost_batches
from tests.batch.yard import Yard
from tests.factory import claimer, ending
from tests.pool.interleave import two

MANY = 300
"""So many that not all are claimed at once."""
BAD = 60
"""In the third of four partitions, in its first chunk of 100; chunks have 5 rows here."""


class Flaw:
    """A handler that fails at one row until it is mended."""

    def __init__(self, yard: Yard, row: int = BAD) -> None:
        self._yard = yard
        self._row = row
        self.mended = False
        self.raised = 0

    def __call__(self, ctx: Any, rows: Any) -> None:
        if not self.mended and any(row.id == self._row for row in rows):
            self.raised += 1
            raise ArithmeticError("this row")
        self._yard.note(ctx, rows)


@pytest.fixture
def flaw(yard: Yard) -> Flaw:
    yard.rows(100)
    return Flaw(yard)


def job(yard: Yard, flaw: Flaw, **options: Any) -> Any:
    return yard.job(yard.step(flaw, commit_every=5, max_attempts=1, **options))


@pytest.mark.test_all
def test_fail_fast_calls_the_others_off(yard: Yard, flaw: Flaw) -> None:
    yard.rows(MANY)
    it = job(yard, flaw, cuts=(26, 51, *range(76, MANY)))

    view = yard.run(it, together=False)

    assert view.batch.status is BatchStatus.FAILED
    third = yard.parts(view.batch.id)[2]
    assert third.status == "FAILED"
    assert "Row 60 of partition 3 fails" in str(third.error)
    assert third.counts.read == 5  # 51 .. 55; the second chunk has the row
    assert yard.statuses(view.batch.id)[-1] == "STOPPED"
    assert "failed: 3" in str(view.steps[0].error)
    flaw.mended = True
    before = len(yard.calls)

    view = yard.run(it)

    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, MANY + 1))
    assert yard.calls[before][0] == 56  # the checkpoint of the third was behind 55


@pytest.mark.test_all
def test_continue_does_all_others_and_fails_at_the_end(yard: Yard, flaw: Flaw) -> None:
    it = job(yard, flaw, on_abort="continue")
    view = yard.run(it)
    assert view.batch.status is BatchStatus.FAILED
    assert yard.statuses(view.batch.id) == ["COMPLETED", "COMPLETED", "FAILED", "COMPLETED"]
    flaw.mended = True
    before = len(yard.calls)
    view = yard.run(it)
    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))
    assert sorted(chain(*yard.calls[before:])) == list(range(56, 76))


@pytest.mark.test_all
def test_a_partition_is_tried_again_from_its_checkpoint(yard: Yard, flaw: Flaw) -> None:
    it = job(yard, flaw, on_abort=("retry_partition", 2))
    view = yard.run(it)
    assert view.batch.status is BatchStatus.FAILED
    assert view.steps[0].round == 2
    runs = yard.sql("SELECT count(*) FROM task_error WHERE name = 'job:step'")
    assert runs == 3
    assert yard.statuses(view.batch.id) == ["COMPLETED", "COMPLETED", "FAILED", "COMPLETED"]
    flaw.mended = True
    assert yard.run(it).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
def test_a_partition_that_succeeds_when_tried_again_completes_the_job(yard: Yard) -> None:
    yard.rows(100)
    flaw = Flaw(yard)

    def mending(ctx: Any, rows: Any) -> None:
        flaw.mended = flaw.raised > 3
        flaw(ctx, rows)

    it = job(yard, mending, on_abort="retry_partition")  # type: ignore[arg-type]
    assert yard.run(it).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
def test_compensate_undoes_what_was_committed(yard: Yard, flaw: Flaw) -> None:
    undone: list[int] = []

    def undo(ctx: Any) -> None:
        undone.append(ctx.partition_no)
        span = ctx.partition.range
        ctx.connection.execute(
            text("DELETE FROM done WHERE id >= :low AND id < :high"),
            {"low": span.low, "high": span.high},
        )

    it = job(yard, flaw, on_abort=("compensate", undo))

    view = yard.run(it)

    assert view.batch.status is BatchStatus.FAILED
    assert undone == [3]
    third = yard.parts(view.batch.id)[2]
    assert (third.status, third.checkpoint, third.counts.read) == ("COMPENSATED", None, 0)
    assert yard.done == [i for i in range(1, 101) if not 51 <= i < 76]
    flaw.mended = True

    assert yard.run(it).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
def test_a_compensation_that_fails_fails_the_step(yard: Yard, flaw: Flaw) -> None:
    def undo(ctx: Any) -> None:
        ctx.connection.execute(text("DELETE FROM done"))
        raise LookupError

    it = job(yard, flaw, on_abort=("compensate", undo), join="best_effort")
    view = yard.run(it)
    assert view.batch.status is BatchStatus.FAILED
    assert yard.statuses(view.batch.id)[2] == "FAILED"
    assert len(yard.done) == 80  # the compensation is rolled back


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("join", "status"),
    [
        ("best_effort", BatchStatus.COMPLETED),
        (("quorum", 0.75), BatchStatus.COMPLETED),
        (("quorum", 0.76), BatchStatus.FAILED),
    ],
)
def test_joins_that_can_do_without(yard: Yard, flaw: Flaw, join: Any, status: BatchStatus) -> None:
    after = yard.step(name="after", commit_every=5)
    step = yard.step(flaw, commit_every=5, max_attempts=1, join=join)
    view = yard.run(yard.job(step, after))
    assert view.batch.status is status
    done = list(range(1, 56)) + list(range(76, 101))
    both = status is BatchStatus.COMPLETED
    assert yard.done == sorted(done + (list(range(1, 101)) if both else []))


@pytest.mark.test_all
def test_any_is_done_with_the_first_one_and_calls_the_others_off(yard: Yard) -> None:
    yard.rows(MANY)
    view = yard.run(yard.job(yard.step(join="any", cuts=tuple(range(2, MANY)))), together=False)
    assert view.batch.status is BatchStatus.COMPLETED
    statuses = yard.statuses(view.batch.id)
    assert "COMPLETED" in statuses
    assert set(statuses) == {"COMPLETED", "ABANDONED"}
    assert yard.sql("SELECT count(*) FROM task_pending") == 0


def test_what_waits_is_called_off_by_the_join_before_anybody_claims_it(yard: Yard) -> None:
    yard.rows(100)
    begun = yard.start(yard.job(yard.step(join="any")))
    yard.plan()
    first = yard.parts(begun.batch_id)[0].task_id
    assert first is not None
    yard.bench.execute([first])
    join = yard.sql("SELECT id FROM task_pending WHERE name = 'job:step:join'")

    yard.bench.execute([join])

    assert yard.sql("SELECT count(*) FROM task_pending") == 0
    assert yard.statuses(begun.batch_id) == ["COMPLETED", *["ABANDONED"] * 3]
    assert yard.sql("SELECT count(*) FROM task_completed WHERE state = 'CANCELLED'") == 3
    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED


@pytest.mark.test_all
def test_a_partition_that_kills_its_process_is_failed_by_the_join(yard: Yard) -> None:
    """As a poison task: it lies in the error pool, and no handler said a word."""
    yard.rows(100)
    it = yard.job(yard.step(on_abort="continue"))
    begun = yard.start(it)
    yard.plan()
    yard.reap(2)

    yard.bench.drain()

    assert yard.view(begun.batch_id).batch.status is BatchStatus.FAILED
    second = yard.parts(begun.batch_id)[1]
    assert (second.status, second.error) == ("FAILED", "process died: signal 9")
    assert yard.run(it).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))


ALL = list(range(1, 101))


@pytest.fixture
def database(yard: Yard) -> Iterator[Database]:
    yard.rows(100)
    made = Database(yard.bench.url)
    yield made
    made.dispose()


def task_of(yard: Yard, word: str, pool: str = "task_pending") -> int:
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
def test_a_join_retried_by_hand_goes_on_if_its_step_does(yard: Yard, database: Database) -> None:
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
def test_what_is_requeued_after_its_work_does_it_no_second_time(yard: Yard, word: str) -> None:
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
def test_a_restart_just_now_is_neither_awaited_nor_undone(yard: Yard, database: Database) -> None:
    job = yard.job(yard.step())
    batch_id = go_until(yard, job, ":join")
    fails(yard, task_of(yard, ":join"))

    with two(yard.engine) as (a, b):
        assert partition_runs.find_batches_with_lost_steps(b, 10) == [batch_id]
        instances.lock(a, batch_id)
        assert end_lost_batches(database) == []
        assert instances.lock_if_free(b, batch_id) is None
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


def requeue_all(yard: Yard, name: str) -> list[int]:
    with yard.engine.begin() as connection:
        found = connection.execute(
            text("SELECT id FROM task_all WHERE name = :name ORDER BY id"), {"name": name}
        )
        ids = list(found.scalars())
        for task_id in ids:
            assert requeue(connection, task_id) is Requeued.REQUEUED
    return ids


def merging(calls: list[int]) -> Any:
    def merge(ctx: Any, parts: Iterator[PartResult]) -> int:
        calls.append(ctx.run)
        return sum(part.counts.read for part in parts)

    return merge


@pytest.mark.test_all
@pytest.mark.parametrize("which", ["", ":plan", ":join", ":reduce"])
def test_an_instance_that_is_complete_stays_so(yard: Yard, which: str) -> None:
    yard.rows(100)
    merged: list[int] = []
    view = yard.completes(yard.step(reduce=merging(merged)))
    ids = requeue_all(yard, "job:step" + which)
    yard.bench.drain()
    assert set(yard.bench.states(ids)) == {"SKIPPED"}
    after = yard.view(view.batch.id)
    assert (after.batch, after.steps) == (view.batch, view.steps)
    assert merged == [1]
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
@pytest.mark.parametrize("which", [":plan", ":join"])
def test_a_step_that_is_complete_stays_so_while_the_next_one_runs(yard: Yard, which: str) -> None:
    yard.rows(100)
    merged: list[int] = []
    job = yard.job(yard.step(reduce=merging(merged)), yard.step(name="next"))
    begun = yard.start(job)
    while yard.sql("SELECT count(*) FROM task_pending WHERE name = 'job:next:plan'") == 0:
        yard.plan()

    ids = requeue_all(yard, "job:step" + which)
    yard.bench.execute(ids)

    assert set(yard.bench.states(ids)) == {"SKIPPED"}
    yard.bench.drain()
    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED
    assert merged == [1]
    assert yard.done == sorted([*range(1, 101)] * 2)


@pytest.mark.test_all
def test_a_join_that_has_decided_does_not_fail_the_step_that_goes_on(yard: Yard) -> None:
    """The partitions' join, once more, while reduce waits."""
    yard.rows(100)
    merged: list[int] = []
    batch_id = go_until(yard, yard.job(yard.step(reduce=merging(merged))), ":reduce")
    ids = requeue_all(yard, "job:step:join")
    yard.bench.execute(ids)
    assert yard.bench.states(ids) == ["SKIPPED"]
    yard.bench.drain()
    assert yard.view(batch_id).batch.status is BatchStatus.COMPLETED
    assert merged == [1]


@pytest.mark.test_all
@pytest.mark.parametrize("which", ["", ":plan", ":join", ":reduce"])
def test_an_instance_that_was_abandoned_stays_so(yard: Yard, which: str) -> None:
    """And does not stand in the way of the one that has its parameters now."""
    yard.rows(100)

    def merge(ctx: Any, parts: Iterator[PartResult]) -> int:
        raise TypeError

    job = yard.job(yard.step(reduce=merge, max_attempts=1))
    failed = yard.run(job)
    assert failed.batch.status is BatchStatus.FAILED
    yard.abandon(failed.batch.id)

    ids = requeue_all(yard, "job:step" + which)
    yard.bench.execute(ids)

    assert set(yard.bench.states(ids)) == {"SKIPPED"}
    assert yard.view(failed.batch.id).batch.status is BatchStatus.ABANDONED
    assert yard.start(job).new


@pytest.mark.test_all
@pytest.mark.parametrize("abandoned", [True, False])
def test_a_lost_instance_goes_on_by_its_plan_unless_abandoned(yard: Yard, abandoned: bool) -> None:
    """Plan and join lie in the error pool."""
    yard.rows(100)
    begun = yard.start(yard.job(yard.step()))
    fails(yard, task_of(yard, ":plan"))
    fails(yard, task_of(yard, ":join"))
    assert yard.view(begun.batch_id).is_lost
    if abandoned:
        yard.abandon(begun.batch_id)

    requeue_all(yard, "job:step:plan")
    yard.bench.drain()

    status = yard.view(begun.batch_id).batch.status
    assert status is (BatchStatus.ABANDONED if abandoned else BatchStatus.COMPLETED)
    assert yard.done == ([] if abandoned else list(range(1, 101)))


@pytest.mark.test_all
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

    ids = requeue_all(yard, "job:step:reduce")
    yard.bench.drain()

    assert yard.bench.states(ids) == ["SKIPPED"]
    assert yard.view(failed.batch.id).batch.status is BatchStatus.FAILED
    assert yard.run(job).batch.status is BatchStatus.COMPLETED
    assert merged == [1, 2]
