"""A job from its start to its end: each row once, steps in their order, results by number."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import text

from tasks_app.batch.control import start_job
from tasks_app.batch.job import BatchJob
from tasks_app.batch.step import Step
from tasks_app.domain.batch.records import BatchStatus, PartResult, StepStatus
from tasks_app.domain.errors import InvalidJobError
from tasks_app.domain.partition.records import Table
from tests.batch.yard import TODO, Yard


@pytest.mark.test_all
def test_each_row_is_done_once(yard: Yard) -> None:
    yard.rows(100)

    view = yard.run(yard.job(yard.step()))

    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))
    assert yard.statuses(view.batch.id) == ["COMPLETED"] * 4
    assert view.tallies["step"].counts[:3] == (100, 100, 0)
    assert view.alive == 0
    assert max(map(len, yard.calls)) == 10


def test_a_job_exists_if_its_transaction_commits(yard: Yard) -> None:
    yard.rows(10)
    job = yard.job(yard.step())
    with yard.engine.connect() as connection:
        begun = start_job(connection, job)
        connection.rollback()

    yard.bench.drain()

    assert yard.sql("SELECT count(*) FROM task_batch") == 0
    assert yard.done == []
    assert begun.new


@pytest.mark.test_all
def test_a_table_without_rows(yard: Yard) -> None:
    view = yard.run(yard.job(yard.step()))

    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.calls == []


def test_a_step_that_reads_nothing_is_called_once(yard: Yard) -> None:
    calls = []

    view = yard.run(yard.job(Step("mail", None, chunk=lambda ctx, rows: calls.append(list(rows)))))

    assert view.batch.status is BatchStatus.COMPLETED
    assert calls == [[]]


@pytest.mark.test_all
def test_steps_run_in_their_order_and_a_diamond_in_its_own(yard: Yard) -> None:
    order: list[str] = []

    def step(name: str, **options: Any) -> Step:
        return Step(name, None, chunk=lambda ctx, rows: order.append(ctx.step), **options)

    view = yard.run(
        yard.job(
            step("a"), step("c", after=["a"]), step("b", after=["a"]), step("d", after=["b", "c"])
        )
    )

    assert view.batch.status is BatchStatus.COMPLETED
    assert (order[0], set(order[1:3]), order[3]) == ("a", {"b", "c"}, "d")


@pytest.mark.test_all
def test_parameters_reach_the_source_the_planner_and_the_handler(yard: Yard) -> None:
    class Params(BaseModel):
        table: str
        factor: int = 2

    yard.rows(20)
    found: list[int] = []

    def chunk(ctx: Any, rows: Any) -> None:
        found.append(ctx.params.factor * len(rows))

    step = Step(
        "step", lambda params: Table(params.table), chunk=chunk, planner=yard.step().planner
    )
    view = yard.run(yard.job(step, params=Params), {"table": "todo"})

    assert view.batch.params == {"table": "todo", "factor": 2}
    assert sum(found) == 40


@pytest.mark.test_all
def test_reduce_gets_what_partitions_leave_by_number(yard: Yard) -> None:
    yard.rows(100)

    def total(ctx: Any, rows: Any) -> None:
        ctx.state["total"] = ctx.state.get("total", 0) + sum(row.amount for row in rows)

    def merge(ctx: Any, parts: Iterator[PartResult]) -> dict[str, Any]:
        seen = list(parts)
        ctx.connection.execute(text("INSERT INTO done VALUES (0, 7)"))
        return {
            "total": sum(part.state["total"] for part in seen),
            "numbers": [part.partition_no for part in seen],
            "lows": [part.low for part in seen],
            "read": [part.counts.read for part in seen],
        }

    view = yard.run(yard.job(yard.step(total, reduce=merge)))

    assert view.batch.status is BatchStatus.COMPLETED
    assert view.steps[0].result == {
        "total": sum(i % 100 for i in range(1, 101)),
        "numbers": [1, 2, 3, 4],
        "lows": [None, "26", "51", "76"],
        "read": [25, 25, 25, 25],
    }
    assert yard.done == [0]


@pytest.mark.test_all
def test_a_reduce_that_fails_fails_its_step_and_is_all_that_runs_again(yard: Yard) -> None:
    yard.rows(100)
    broken = [True]

    def merge(ctx: Any, parts: Iterator[PartResult]) -> int:
        if broken:
            raise ArithmeticError
        return sum(part.counts.read for part in parts)

    job = yard.job(yard.step(reduce=merge, max_attempts=2))
    view = yard.run(job)
    assert (view.batch.status, view.steps[0].status) == (BatchStatus.FAILED, StepStatus.FAILED)
    assert "Its reduce ended FAILED: ArithmeticError" in str(view.steps[0].error)
    broken.clear()

    view = yard.run(job)

    assert view.batch.status is BatchStatus.COMPLETED
    assert view.steps[0].result == 100
    assert yard.done == list(range(1, 101))


def test_one_commit_at_the_end(yard: Yard) -> None:
    yard.rows(100)
    before: list[int] = []

    def chunk(ctx: Any, rows: Any) -> None:
        before.append(yard.sql("SELECT count(*) FROM done"))
        yard.note(ctx, rows)

    view = yard.run(yard.job(yard.step(chunk, cuts=(), commit="end")))

    assert view.batch.status is BatchStatus.COMPLETED
    assert before == [0] * len(before)
    assert len(before) > 9
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
@pytest.mark.parametrize(("says", "written"), [(1, 12), (-1, 100), ("many", 100), (True, 100)])
def test_a_handler_may_say_how_many_rows_it_wrote(yard: Yard, says: Any, written: int) -> None:
    yard.rows(100)

    view = yard.run(yard.job(yard.step(lambda ctx, rows: says)))

    assert view.tallies["step"].counts.written == written  # chunks of 10, 10 and 5
    assert view.tallies["step"].counts.read == 100


def test_logs_and_tasks_say_which_partition(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    yard.rows(30)

    def chunk(ctx: Any, rows: Any) -> None:
        ctx.log.error("a word")

    view = yard.run(yard.job(yard.step(chunk, cuts=(21,))))

    words = [record for record in caplog.records if record.message.endswith(": a word")]
    assert {record.partition_no for record in words} == {1, 2}  # type: ignore[attr-defined]
    assert {record.batch_id for record in words} == {view.batch.id}  # type: ignore[attr-defined]
    assert {record.task_name for record in words} == {"job:step"}  # type: ignore[attr-defined]


def test_a_wrong_plan_starts_nothing(yard: Yard) -> None:
    yard.rows(10)

    view = yard.run(yard.job(yard.step(source=Table("nowhere"), planner=Refusing())))

    assert view.batch.status is BatchStatus.FAILED
    assert view.steps[0].status is StepStatus.FAILED
    assert view.steps[0].error == "There is a gap: 5 <= key < 7."
    assert view.tallies == {}
    assert yard.calls == []


class Refusing:
    """A planner that finds its plan wrong, after it has written something."""

    def plan(self, connection: Any, source: Any) -> Any:
        from tasks_app.domain.errors import PlanError

        connection.execute(text("INSERT INTO done VALUES (0, 0)"))
        raise PlanError("There is a gap: 5 <= key < 7.")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"commit": "never"}, 'is neither "every" nor "end"'),
        ({"skip_limit": -1}, "skip_limit"),
        ({"commit_every": "soon"}, "commit_every"),
        ({"join": "some"}, "join"),
        ({"on_abort": "cry"}, "on_abort"),
        ({"after": ["nobody"]}, "is no step"),
        ({"name": "a:b"}, "no valid name"),
    ],
)
def test_a_job_that_cannot_work_is_refused(yard: Yard, options: Any, words: str) -> None:
    with pytest.raises(InvalidJobError, match=words):
        yard.job(yard.step(**options))


def test_a_coroutine_is_refused_for_nobody_would_await_it(yard: Yard) -> None:
    async def chunk(ctx: Any, rows: Any) -> None: ...

    with pytest.raises(InvalidJobError, match="coroutine function"):
        yard.step(chunk)


def test_a_turn_ends_long_before_its_time_limits(yard: Yard) -> None:
    assert yard.step().turn == timedelta(minutes=10)
    assert yard.step(hard_timeout="4m").turn == timedelta(minutes=2)
    assert yard.step(timeout="30s", hard_timeout="4m").turn == timedelta(seconds=15)


def test_steps_that_wait_for_each_other_are_refused(yard: Yard) -> None:
    with pytest.raises(InvalidJobError, match="wait for each other"):
        yard.job(yard.step(name="a", after=["b"]), yard.step(name="b", after=["a"]))


def test_two_jobs_of_one_name_are_refused_and_one_that_is_imported_again_is_not() -> None:
    from tasks_app.batch.job import JOBS

    def one(ctx: Any, rows: Any) -> None: ...
    def two(ctx: Any, rows: Any) -> None: ...

    try:
        BatchJob("twice", [Step("s", TODO, chunk=one)])
        BatchJob("twice", [Step("s", TODO, chunk=one)])
        with pytest.raises(InvalidJobError, match="declared with"):
            BatchJob("twice", [Step("s", TODO, chunk=two)])
    finally:
        JOBS.pop("twice", None)
