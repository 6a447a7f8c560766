"""Retention of batches: what goes when it is over for long, and what stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.batch.planners.keys import KeyList
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.pool.batch import partition_runs
from tasks_app.pool.batch.instances import ROWS
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.retention import Retention, preview_retention
from tests.batch.yard import Yard
from tests.pool.database import prepared
from tests.pool.interleave import two

pytestmark = pytest.mark.test_all
TABLES = ("batch", "batch_step", "batch_skip", "partition", "partition_value")
LONG_AGO = "UPDATE task_batch SET ended_at = now() - interval '400 days' WHERE id = :id"
Keeps = Callable[..., Retention]


@pytest.fixture
def keeps(yard: Yard) -> Iterator[Keeps]:
    yard.rows(100)
    made = Database(yard.bench.url)
    yield lambda ages="365d": Retention(yard.bench.settings(keep_batches=ages), made)
    made.dispose()


def sevens(ctx: Any, rows: Any) -> None:
    if any(row.id % 7 == 0 for row in rows):
        raise ValueError("seven")


def job(yard: Yard, chunk: Any = sevens, name: str = "job") -> Any:
    """Lists of values, and rows that are left out."""
    listed = KeyList({1: [], 2: []}, auto_assign=True)
    return yard.job(yard.step(chunk, planner=listed, skip_limit=20, max_attempts=1), name=name)


def old(yard: Yard, it: Any, params: Any = None) -> int:
    """An instance that has run, and ended long ago."""
    batch_id = yard.run(it, params).batch.id
    yard.sql(LONG_AGO, id=batch_id)
    return batch_id


def rows(yard: Yard) -> list[int]:
    return [yard.sql(f"SELECT count(*) FROM task_{name}") for name in TABLES]


def ids(yard: Yard) -> list[int]:
    found: list[int] = yard.sql("SELECT array_agg(id ORDER BY id) FROM task_batch")
    return found or []


def test_what_is_over_for_long_goes_with_all_that_it_left(yard: Yard, keeps: Keeps) -> None:
    it = job(yard)
    young = yard.run(it, {"n": 1}).batch.id
    before = rows(yard)
    old(yard, it)
    assert rows(yard) == [2 * number for number in before] == [2, 2, 28, 4, 200]
    pruned = keeps().run()
    assert (pruned.batches, ids(yard), rows(yard)) == (1, [young], before)
    assert keeps("forever").run().batches == 0


def test_what_people_keep_stays(yard: Yard, keeps: Keeps) -> None:
    batch_id = old(yard, job(yard))
    for program, of in (("kept", None), ("kept.too", batch_id)):
        yard.sql(
            "INSERT INTO task_partition (program_id, partition_no, key_type, num_range, batch_id)"
            " VALUES (:program, 1, 'integer', '[,)', :of)",
            program=program,
            of=of,
        )

    assert keeps().run().batches == 1

    assert yard.sql("SELECT array_agg(program_id ORDER BY id) FROM task_partition") == [
        "kept",
        "kept.too",
    ]


def test_what_can_go_on_stays_until_it_is_abandoned(yard: Yard, keeps: Keeps) -> None:
    def broken(ctx: Any, rows: Any) -> None:
        raise MemoryError

    it = yard.job(yard.step(broken, max_attempts=1))
    failed, stopped = old(yard, it), yard.start(it, {"n": 2}).batch_id
    yard.stop(stopped)
    yard.bench.drain()
    yard.sql(LONG_AGO, id=stopped)
    yard.sql("UPDATE task_batch SET created_at = now() - interval '9 years'")
    runs = yard.start(it, {"n": 3}).batch_id

    assert keeps().run().batches == 0
    assert ids(yard) == [failed, stopped, runs]
    yard.abandon(failed)
    assert keeps().run().batches == 0
    yard.sql(LONG_AGO, id=failed)

    assert keeps().run().batches == 1
    assert ids(yard) == [stopped, runs]


def test_what_has_a_task_left_stays(yard: Yard, keeps: Keeps) -> None:
    batch_id = old(yard, job(yard))
    task_id = yard.bench.create("other", biz_key=f"batch:{batch_id}")
    assert keeps().run().batches == 0
    yard.sql("DELETE FROM task_pending WHERE id = :id", id=task_id)
    assert keeps().run().batches == 1


def test_jobs_have_ages_of_their_own(yard: Yard, keeps: Keeps) -> None:
    kept, other = old(yard, job(yard, name="payroll")), old(yard, job(yard, name="night"))
    assert keeps("forever,night=500d").run().batches == 0
    assert keeps("365d,payroll=forever").run().batches == 1
    assert ids(yard) == [kept]
    assert other not in ids(yard)


def test_the_same_parameters_begin_anew_when_the_instance_is_gone(yard: Yard, keeps: Keeps) -> None:
    it = yard.job(yard.step())
    first = old(yard, it, {"month": "2026-11"})
    keeps().run()
    view = yard.run(it, {"month": "2026-11"})
    assert view.batch.id != first
    assert view.batch.status is BatchStatus.COMPLETED
    assert len(yard.done) == 200


def test_it_goes_some_rows_at_a_time_and_the_next_one_goes_on(yard: Yard, keeps: Keeps) -> None:
    yard.sql(
        "INSERT INTO task_batch_skip (batch_id, step, partition_no, key, reason)"
        " SELECT :id, 'step', 1, i, 'odd' FROM generate_series(1, :more) i",
        id=old(yard, job(yard)),
        more=2 * ROWS,
    )
    seen = [sum(rows(yard))]

    while not keeps().run(0).batches:
        seen.append(sum(rows(yard)))

    steps = [before - after for before, after in pairwise(seen)]
    assert steps == [ROWS, ROWS, 14, 100, 2]
    assert sum(rows(yard)) == 0


def test_what_somebody_holds_is_left_for_the_next_pass(yard: Yard, keeps: Keeps) -> None:
    it = job(yard)
    held, other = old(yard, it), old(yard, it, {"n": 2})
    with two(yard.engine) as (a, b):
        a.execute(text("SELECT FROM task_batch WHERE id = :id FOR UPDATE"), {"id": held})
        assert keeps().run().batches == 1
        assert b.scalar(text("SELECT count(*) FROM task_partition")) == 2
        a.rollback()
        b.rollback()
    assert other not in ids(yard)
    assert keeps().run().batches == 1


def test_what_would_go_is_told(yard: Yard, keeps: Keeps) -> None:
    old(yard, job(yard))
    with yard.engine.connect() as connection:
        (told,) = preview_retention(connection, yard.bench.settings())
    assert (told.pool, told.what, told.rows, told.how, told.kept) == (
        *(None, "task_batch", 1),
        *("deleted", "365d"),
    )
    assert told.bytes > 100


def test_who_looks_for_lost_ones_reads_none_that_are_over(yard: Yard) -> None:
    yard.sql("""
        INSERT INTO task_batch (job, identity, status, ended_at)
        SELECT 'job', i, 'COMPLETED', now() FROM generate_series(1, 5000) AS i
    """)
    yard.sql("ANALYZE task_batch")

    with yard.engine.connect() as connection:
        plan = prepared(
            connection, "suspects", lambda c: partition_runs.find_batches_with_lost_steps(c, 100)
        ).run(connection)

    assert "task_batch_ended" in plan.indexes
    assert plan.rows == 0
