"""A batch goes on where it stopped, and every row is done once."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from sqlalchemy import Connection, text

from tasks_app.batch import validate
from tasks_app.batch.control import abandon_job, list_jobs, start_job
from tasks_app.batch.execution.chunk import reader_of
from tasks_app.batch.execution.partition_run import Stealing
from tasks_app.batch.job import BatchJob
from tasks_app.batch.planners.even import Even, Indicator
from tasks_app.batch.replan import replan, share
from tasks_app.batch.step import Step
from tasks_app.batch.validate import split
from tasks_app.domain.batch.policies import CommitEvery
from tasks_app.domain.batch.records import BatchStatus, StepStatus
from tasks_app.domain.errors import BatchStateError, InvalidJobError, PlanError
from tasks_app.domain.partition.records import Plan, RowCounts, StoredPartition, Table
from tasks_app.pool.batch import partition_progress, partitions
from tasks_app.pool.batch.sources import marks
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tasks_app.runtime.handlers.registry import Registry
from tests.batch.test_odd_keys import REFUSED, Odd, odd_tables
from tests.batch.yard import Greedy, Ranges, Yard
from tests.factory import claimer


class Month(BaseModel):
    month: str
    dry: bool = False


@pytest.mark.test_all
def test_the_same_parameters_are_the_same_instance(yard: Yard) -> None:
    yard.rows(10)
    job = yard.job(yard.step(), params=Month, identified_by=["month"])
    first = yard.start(job, {"month": "2026-10"})
    other = yard.start(job, {"month": "2026-11"})
    yard.bench.drain()
    assert first.batch_id != other.batch_id
    with pytest.raises(BatchStateError, match="is complete with these parameters") as refused:
        yard.start(job, {"month": "2026-10", "dry": True})
    assert refused.value.batch_id == first.batch_id


def test_an_instance_that_runs_is_not_started_twice(yard: Yard) -> None:
    job = yard.job(yard.step())
    begun = yard.start(job)
    with pytest.raises(BatchStateError, match=r"is RUNNING\. Wait"):
        yard.start(job)
    with pytest.raises(BatchStateError, match=r"is RUNNING\. Wait"):
        yard.go_on(begun.batch_id)


def test_two_who_start_at_once_make_one(yard: Yard) -> None:
    job = yard.job(yard.step())

    def start(_: int) -> Any:
        try:
            return yard.start(job)
        except BatchStateError as refusal:
            return refusal

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(start, range(8)))

    assert sum(not isinstance(answer, BatchStateError) for answer in answers) == 1
    assert yard.sql("SELECT count(*) FROM task_batch") == 1
    assert yard.sql("SELECT count(*) FROM task_pending") == 1


@pytest.mark.test_all
def test_a_step_failure_is_gone_on_with_after_a_fix_of_the_code(yard: Yard) -> None:
    """The first step is complete and not called again; its code may be gone."""
    yard.rows(100)

    def broken(ctx: Any, rows: Any) -> None:
        raise TypeError

    view = yard.fails(yard.step(name="one"), yard.step(broken, name="two", max_attempts=1))
    assert {step.step: step.status for step in view.steps} == {
        "one": StepStatus.COMPLETED,
        "two": StepStatus.FAILED,
    }
    assert len(yard.calls) == 12
    yard.deploy()

    mended = yard.job(yard.step(broken, name="one"), yard.step(name="two"), yard.step(name="new"))
    view = yard.run(mended)

    assert view.batch.status is BatchStatus.COMPLETED
    assert view.batch.run == 2
    assert yard.done == sorted([*range(1, 101)] * 3)


@pytest.mark.test_all
@pytest.mark.parametrize("cuts", [(), (10, 20, 30, 40, 50, 60, 70, 80, 90)])
def test_another_number_of_parts_leaves_a_begun_plan(yard: Yard, cuts: tuple[int, ...]) -> None:
    yard.rows(100)

    def broken(ctx: Any, rows: Any) -> None:
        if rows[0].id > 60:
            raise TypeError
        yard.note(ctx, rows)

    view = yard.fails(yard.step(broken, max_attempts=1, on_abort="continue"))
    yard.deploy()
    view = yard.completes(yard.step(cuts=cuts))
    assert yard.done == list(range(1, 101))
    assert len(yard.parts(view.batch.id)) == 4


@pytest.mark.test_all
def test_what_has_not_started_may_be_divided(yard: Yard) -> None:
    """What has begun keeps its range and its checkpoint."""
    yard.rows(100)

    def broken(ctx: Any, rows: Any) -> None:
        if rows[0].id > 60:
            raise TypeError
        yard.note(ctx, rows)

    failed = yard.run(yard.job(yard.step(broken, max_attempts=1, on_abort="continue")))
    assert yard.statuses(failed.batch.id) == ["COMPLETED", "COMPLETED", "FAILED", "FAILED"]
    yard.deploy()

    view = yard.go_on_with(yard.job(yard.step()), failed.batch.id, divide=3)

    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))
    assert len(yard.parts(view.batch.id)) == 6  # the third had begun, the fourth is three now


@pytest.mark.test_all
def test_stop_ends_at_a_chunk_and_a_restart_goes_on_there(yard: Yard) -> None:
    yard.rows(100)
    begun: list[int] = []

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        if rows[0].id == 36:
            assert yard.stop(ctx.batch_id) >= 1

    job = yard.job(yard.step(chunk))
    view = yard.run(job, together=False)

    assert view.batch.status is BatchStatus.STOPPED
    assert yard.statuses(view.batch.id) == ["COMPLETED", "STOPPED", "STOPPED", "STOPPED"]
    assert yard.done == [*range(1, 46)]
    assert yard.sql("SELECT count(*) FROM task_error") == 0
    begun += yard.calls

    again = yard.go_on_with(job, view.batch.id)

    assert again.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))
    assert yard.calls[len(begun)][0] == 46
    assert yard.sql("SELECT string_agg(action, ' ' ORDER BY id) FROM task_audit") == (
        "stop batch restart batch"
    )


@pytest.mark.test_all
def test_a_stop_before_anything_ran(yard: Yard) -> None:
    yard.rows(10)
    job = yard.job(yard.step())
    begun = yard.start(job)
    yard.stop(begun.batch_id)
    yard.bench.drain()
    assert yard.view(begun.batch_id).batch.status is BatchStatus.STOPPED
    assert yard.run(job).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 11))


@pytest.mark.test_all
def test_who_does_not_run_cannot_be_stopped(yard: Yard) -> None:
    view = yard.run(yard.job(yard.step()))
    with pytest.raises(BatchStateError, match="does not run"):
        yard.stop(view.batch.id)
    with pytest.raises(BatchStateError, match="There is no batch 12345"):
        yard.stop(12345)


@pytest.mark.test_all
def test_an_abandoned_instance_makes_room_for_another(yard: Yard) -> None:
    yard.rows(10)

    def broken(ctx: Any, rows: Any) -> None:
        raise TypeError

    failed = yard.run(yard.job(yard.step(broken, max_attempts=1)))
    yard.abandon(failed.batch.id)
    with pytest.raises(BatchStateError, match="was abandoned"):
        yard.go_on_with(yard.job(yard.step(broken, max_attempts=1)), failed.batch.id)
    yard.deploy()

    view = yard.run(yard.job(yard.step()))

    assert view.batch.id != failed.batch.id
    assert view.batch.status is BatchStatus.COMPLETED
    with yard.engine.connect() as connection:
        assert [each.status for each in list_jobs(connection)] == ["COMPLETED", "ABANDONED"]


def test_what_runs_is_not_abandoned(yard: Yard) -> None:
    begun = yard.start(yard.job(yard.step()))
    with yard.engine.begin() as connection, pytest.raises(BatchStateError, match="Stop it first"):
        abandon_job(connection, begun.batch_id)


@pytest.mark.test_all
def test_an_instance_whose_tasks_are_gone_can_go_on(yard: Yard) -> None:
    """Its join is in the error pool: nobody is left who would say how it ended."""
    yard.rows(100)
    job = yard.job(yard.step())
    begun = yard.start(job)
    yard.plan()
    yard.sql("DELETE FROM task_pending")
    assert yard.view(begun.batch_id).is_lost
    view = yard.run(job)
    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 101))


def test_a_run_that_was_left_behind_writes_nothing_any_more(yard: Yard) -> None:
    """Its partition was given to another task while it was between two chunks."""
    yard.rows(100)
    job = yard.job(yard.step())
    begun = yard.start(job)
    yard.plan()
    part = yard.parts(begun.batch_id)[0]
    with yard.engine.begin() as connection:
        (task,) = claim(connection, [part.task_id or 0], claimer("job:step"), uuid4())
        assert partition_progress.start(connection, part.id, task.fence)
        assert partition_progress.progress(
            connection, part.id, task.fence, RowCounts(1), {"after": ["1"]}
        )
    with yard.engine.begin() as connection:
        connection.execute(
            text("UPDATE task_partition SET task_id = task_id + 1000 WHERE id = :id"),
            {"id": part.id},
        )

    with yard.engine.begin() as connection:
        assert (
            partition_progress.progress(connection, part.id, task.fence, RowCounts(1), {}) is None
        )
        assert partition_progress.start(connection, part.id, task.fence) is None


@pytest.mark.test_all
def test_a_step_that_is_new_in_the_code_of_a_run_is_done_in_it(yard: Yard) -> None:
    """Workers were replaced while the instance ran."""
    yard.rows(20)
    yard.start(yard.job(yard.step()))
    yard.plan()
    yard.deploy()
    job = yard.job(yard.step(), yard.step(name="new"))
    yard.bench.drain()
    (batch,) = yard.sql("SELECT array_agg(id) FROM task_batch")
    view = yard.view(batch)
    assert (view.batch.status, len(view.steps), job.name) == ("COMPLETED", 2, "job")
    assert yard.done == sorted([*range(1, 21)] * 2)


@pytest.mark.test_all
def test_a_join_of_an_earlier_run_changes_nothing(yard: Yard) -> None:
    """An operator requeues it after the restart."""
    yard.rows(100)

    def broken(ctx: Any, rows: Any) -> None:
        if not mended:
            raise TypeError
        yard.note(ctx, rows)

    mended: list[bool] = []
    job = yard.job(yard.step(broken, max_attempts=1))
    assert yard.run(job).batch.status is BatchStatus.FAILED
    join = yard.sql("SELECT id FROM task_completed WHERE name = 'job:step:join'")
    mended.append(True)
    yard.restart(job)
    yard.plan()
    with yard.engine.begin() as connection:
        assert requeue(connection, join) is Requeued.REQUEUED

    yard.bench.execute([join])

    assert yard.bench.state(join) == "SKIPPED"
    yard.bench.drain()
    assert [each.status for each in list_instances(yard)] == ["COMPLETED"]
    assert yard.done == list(range(1, 101))


def list_instances(yard: Yard) -> Any:
    with yard.engine.connect() as connection:
        return list_jobs(connection)


def test_a_job_that_nobody_declares_cannot_be_started(yard: Yard) -> None:
    with yard.engine.begin() as connection, pytest.raises(InvalidJobError, match="no job nothing"):
        start_job(connection, "nothing")


@pytest.mark.test_all
def test_a_restart_of_a_plan_that_was_refused_plans_anew(yard: Yard) -> None:
    yard.rows(20)

    class Refuses(Ranges):
        def plan(self, connection: Any, source: Any) -> Any:
            from tasks_app.domain.errors import PlanError

            raise PlanError("no")

    assert yard.run(yard.job(yard.step(planner=Refuses(())))).batch.status is BatchStatus.FAILED
    yard.deploy()
    yard.completes(yard.step(cuts=(11,)))
    assert yard.done == list(range(1, 21))


EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "0"))
"""So many at random, from the seed that is told; 0: always the same ones, in every `make test`."""
QUICK = 120
PROGRAM = "p#1"
any_table = settings(
    max_examples=EXAMPLES or QUICK,
    derandomize=not EXAMPLES,
    phases=tuple(Phase) if EXAMPLES else (Phase.generate,),
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
NO_ORDER = "page_by"
"""What a refusal names when rows are not told apart."""
OF_THE_PLANNER = (
    "cannot be split into ranges of|more than 10000. Use a larger width|cannot be sampled|"
    "cannot be listed|is no table|cannot be marked|has no partitions in the database|"
    "characters long|no statistics"
)


class Days:
    """Runs of the partitions of one program, in any order, killed and divided on their way."""

    def __init__(self, connection: Connection, step: Step, data: st.DataObject) -> None:
        self.connection = connection
        self.step = step
        self.job = BatchJob("once", [step], registry=Registry())
        self.draw = data.draw
        self.done: list[int] = []
        self.ended: set[int] = set()
        self.readers: dict[int, Any] = {}

    def parts(self) -> list[StoredPartition]:
        found = partitions.find_by_program(self.connection, PROGRAM)
        return [each for each in found if each.id not in self.ended]

    def to_the_end(self) -> None:
        """Until all partitions are done, or one refuses to be read."""
        acts = [self.page] * 4 + [self.killed, self.forgotten, self.gives, self.replanned]
        for _ in range(400):
            left = self.parts()
            if not left:
                return
            self.draw(st.sampled_from(acts))(self.draw(st.sampled_from(left)))
        while left := self.parts():
            self.page(left[0])

    def page(self, stored: StoredPartition) -> None:
        """A chunk that commits."""
        rows, last = self.read(stored)
        self.done += [int(row.id if hasattr(row, "id") else row["id"]) for row in rows]
        reader = self.readers[stored.id]
        place = reader.after(rows) if rows else (stored.checkpoint or {}).get("after")
        self.keep(stored, {"after": place, "until": reader.until, "state": {}})
        if last:
            self.ended.add(stored.id)

    def killed(self, stored: StoredPartition) -> None:
        """A chunk that was read and is not committed."""
        with self.connection.begin_nested() as savepoint:
            self.read(stored)
            savepoint.rollback()
        self.readers.pop(stored.id, None)

    def forgotten(self, stored: StoredPartition) -> None:
        """A process that dies between two chunks."""
        self.readers.pop(stored.id, None)

    def gives(self, stored: StoredPartition) -> None:
        """A run that gives half away."""
        stealing = Stealing(self.job, self.step, None)
        stealing._somebody_waits = lambda *_: False  # type: ignore[method-assign]
        halves = stealing.halves(self.connection, stored.id, Greedy(CommitEvery(1)))
        if halves:
            numbers = [each.partition.number for each in self.all()]
            made = share(self.connection, stored, halves, 1 + max(numbers))
            until = stored.checkpoint["until"]
            partitions.set_range_end(self.connection, list(made.values()), until)
            self.readers.pop(stored.id, None)

    def replanned(self, stored: StoredPartition) -> None:
        if stored.partition.view is None and stored.partition.kind == "range":
            numbers = {stored.partition.number}
            replan(self.connection, PROGRAM, self.step.source, Even(parts=2), numbers)
            self.readers.pop(stored.id, None)

    def all(self) -> list[StoredPartition]:
        return partitions.find_by_program(self.connection, PROGRAM)

    def read(self, stored: StoredPartition) -> tuple[list[Any], bool]:
        place = stored.checkpoint or {}
        if stored.id not in self.readers:
            until = place.get("until")
            made = reader_of(self.connection, self.step, None, stored, until)
            self.readers[stored.id] = made
        reader, size = self.readers[stored.id], self.draw(st.integers(1, 6))
        rows = reader.read(self.connection, place.get("after"), size)
        return list(rows), reader.is_last(self.connection, rows, size)

    def keep(self, stored: StoredPartition, checkpoint: Any) -> None:
        self.connection.execute(
            text("UPDATE task_partition SET checkpoint = CAST(:it AS jsonb) WHERE id = :id"),
            {"it": json.dumps(checkpoint), "id": stored.id},
        )


def planned(connection: Connection, odd: Odd, step: Step) -> Plan | None:
    """The plan; None: it was refused, for a reason that there is."""
    try:
        plan = split(connection, step, None)
    except PlanError as error:
        known = OF_THE_PLANNER if odd.has_order else f"{OF_THE_PLANNER}|{NO_ORDER}"
        if not re.search(known, str(error)):
            raise
        return None
    partitions.insert(connection, PROGRAM, plan, batch_id=1, step="step")
    if isinstance(odd.planner, Indicator) and odd.planner.marker is None:
        try:
            marks.fill(connection, PROGRAM, odd.source)
        except PlanError:
            return None
    return plan


def step_of(odd: Odd) -> Step:
    return Step("step", odd.source, chunk=lambda *_: None, planner=odd.planner, page_by=odd.page_by)


@pytest.mark.test_all
@pytest.mark.timeout(0)
@given(data=st.data())
@any_table
def test_all_rows_are_done(connection: Connection, tmp_path: Path, data: st.DataObject) -> None:
    odd = data.draw(odd_tables(tmp_path))
    with connection.begin_nested() as savepoint:
        odd.make(connection)
        days = Days(connection, step_of(odd), data)
        if planned(connection, odd, days.step) is not None:
            try:
                days.to_the_end()
            except PlanError as error:
                if odd.has_order or NO_ORDER not in str(error):
                    raise
            else:
                assert Counter(days.done) == Counter(range(1, len(odd.keys) + 1))
        savepoint.rollback()


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("domain", [0, 1])
@pytest.mark.parametrize("reads", ["table", "query"])
def test_the_plan_refuses_inexact_orders(
    connection: Connection, kind: str, domain: int, reads: str
) -> None:
    odd = Odd(kind, [], domain=domain, reads=reads, planner=Even(parts=2))
    odd.make(connection)
    with pytest.raises(PlanError, match="cannot be a key"):
        split(connection, step_of(odd), None)


def test_a_plan_whose_partitions_read_a_big_table_whole_says_so(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.exec_driver_sql("CREATE TABLE sale (n int PRIMARY KEY, shop text)")
    connection.exec_driver_sql("INSERT INTO sale SELECT i, i FROM generate_series(1, 9) AS i")
    step = Step("pay", Table("sale", "shop"), chunk=print, planner=Even(parts=2), page_by="n")
    assert split(connection, step, None).warnings == ()
    monkeypatch.setattr(validate, "BIG_BYTES", 1)
    (warning,) = split(connection, step, None).warnings
    assert warning == (
        "Each partition reads sale whole, because no index begins with shop. "
        'Create one: CREATE INDEX CONCURRENTLY ON sale (shop COLLATE "C");'
    )
    connection.exec_driver_sql('CREATE INDEX ON sale (shop COLLATE "C")')
    assert split(connection, step, None).warnings == ()
