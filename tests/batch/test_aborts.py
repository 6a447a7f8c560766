"""What follows when a partition fails for good, by policy, and the restart after each."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.domain.batch.records import BatchStatus
from tests.batch.yard import Yard

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
