"""A bucket column gets another modulus in small commits, and nobody reads a mixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from tasks_app.batch.buckets import BucketColumn, add_bucket, rebalance_online
from tasks_app.batch.job import JOBS
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.progress import JobProgress
from tasks_app.batch.validate import split
from tasks_app.domain.batch.policies import CommitEvery
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Table
from tasks_app.pool.batch import instances
from tasks_app.pool.batch.sources import buckets
from tasks_app.pool.batch.sources.predicate import bucket, execute_inline, inline
from tasks_app.pool.batch.sources.relation import find
from tests.batch.yard import TODO, Yard
from tests.pool.interleave import blocked, two

ROWS = 5_000
TO = BucketColumn(TODO, "bucket", 5)
WRONG = "SELECT count(*) FROM todo WHERE bucket IS DISTINCT FROM {}"


@pytest.fixture
def table(yard: Yard) -> Iterator[Yard]:
    """Rows in some 40 blocks, with a bucket by 3; a commit has four blocks."""
    yard.rows(ROWS)
    with yard.engine.begin() as connection:
        add_bucket(connection, TODO, "bucket", 3)
    yield yard
    for function in (f"todo:tasks_app:bucket:{number}" for number in (2, 5, 9)):
        yard.sql(f'DROP FUNCTION IF EXISTS "{function}" CASCADE')
    for name in ("other", "job"):
        JOBS.pop(name, None)


def rebalance(engine: Engine, new: BucketColumn = TO, told: Any = lambda _: None) -> int:
    return rebalance_online(engine, new, told, CommitEvery(4))


def by(engine: Engine, modulus: int) -> int:
    """How many rows have a bucket by another modulus."""
    with engine.connect() as connection:
        relation = find(connection, TODO)
        expected = inline(connection, bucket(relation.key, relation.key_type, modulus))
        wrong: int = execute_inline(connection, WRONG.format(expected)).scalar_one()
    return wrong


@pytest.mark.test_all
def test_another_modulus_in_small_commits(table: Yard) -> None:
    told: list[int] = []

    assert rebalance(table.engine, told=told.append) == ROWS

    assert by(table.engine, 5) == 0
    assert told[0] < ROWS / 3
    assert told == sorted(told)
    columns = "SELECT string_agg(attname, ' ') FROM pg_attribute WHERE attrelid = 'todo'::regclass"
    assert table.sql(f"{columns} AND attnum > 0 AND NOT attisdropped") == "id place amount bucket"
    planner = Hash(parts=5, column="bucket")
    view = table.run(table.job(table.step(planner=planner, commit_every=2000)))
    assert view.batch.status is BatchStatus.COMPLETED
    assert table.done == list(range(1, ROWS + 1))


def test_new_rows_and_new_keys_have_it_before_and_after(table: Yard) -> None:
    with table.engine.begin() as connection:
        buckets.begin_rebucket(connection, TO)
    table.sql("INSERT INTO todo (id, amount) VALUES (-1, 0)")
    table.sql("UPDATE todo SET id = -2 WHERE id = 2")
    assert by(table.engine, 3) == 0

    assert rebalance(table.engine) == ROWS - 1

    table.sql("INSERT INTO todo (id, amount) VALUES (-3, 0)")
    table.sql("UPDATE todo SET id = -4 WHERE id = 4")
    assert by(table.engine, 5) == 0


def test_the_index_may_take_longer_than_statements_of_ours(table: Yard) -> None:
    patience = {"options": "-c statement_timeout=30s"}
    engine = create_engine(table.engine.url, connect_args=patience, pool_size=1, max_overflow=0)
    with engine.begin() as connection:
        buckets.begin_rebucket(connection, TO)
    with engine.connect() as connection:
        alone = connection.execution_options(isolation_level="AUTOCOMMIT")
        buckets.build_bucket_index(alone, TO)
        spans = [alone.exec_driver_sql(f"SHOW {w}_timeout").scalar() for w in ("statement", "lock")]
        alone.invalidate()
    assert spans == ["0", "0"]

    rebalance(engine)

    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "30s"
    engine.dispose()


def test_it_goes_on_where_it_was_interrupted(table: Yard) -> None:
    told: list[int] = []

    def dying(rows: int) -> None:
        told.append(rows)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebalance(table.engine, told=dying)
    assert by(table.engine, 3) == 0
    done = table.sql("SELECT count(*) FROM todo WHERE bucket__5 IS NOT NULL")
    assert 0 < done == told[-1] < ROWS

    assert rebalance(table.engine) == ROWS - done

    assert by(table.engine, 5) == 0


def test_a_row_that_others_move_meanwhile_is_met_in_the_next_pass(table: Yard) -> None:
    moved = []

    def move(_rows: int) -> None:
        if not moved:  # behind the end that this pass goes to
            moved.append(table.sql("UPDATE todo SET amount = 1000 WHERE id > :n", n=ROWS - 100))

    assert rebalance(table.engine, told=move) == ROWS

    assert by(table.engine, 5) == 0


@pytest.mark.test_all
def test_again_and_again(table: Yard) -> None:
    rebalance(table.engine)
    with pytest.raises(PlanError, match="already has the modulus 5"):
        rebalance(table.engine)
    with table.engine.begin() as connection:
        buckets.begin_rebucket(connection, BucketColumn(TODO, "bucket", 9))  # given up

    rebalance(table.engine, BucketColumn(TODO, "bucket", 2))

    assert by(table.engine, 2) == 0
    triggers = (
        "SELECT array_agg(tgname ORDER BY 1) FROM pg_trigger WHERE tgrelid = 'todo'::regclass"
    )
    assert table.sql(triggers) == ["tasks_app:bucket:2"]


@pytest.mark.test_all
def test_it_is_refused_while_an_instance_that_is_not_complete_reads_by_it(table: Yard) -> None:
    job = table.job(table.step(planner=Hash(parts=3, column="bucket"), commit_every=2000))
    begun = table.start(job)
    table.plan()

    with pytest.raises(PlanError, match=rf"read todo by bucket: {begun.batch_id} \(job, step\)"):
        rebalance(table.engine)
    assert table.sql("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'todo'::regclass") == 0
    JOBS["job"] = job  # who knows it, knows which table it reads
    with pytest.raises(PlanError, match="Wait until they end"):
        rebalance(table.engine)
    table.bench.drain()

    assert rebalance(table.engine) == ROWS


def test_an_instance_of_another_table_is_in_nobodys_way(table: Yard) -> None:
    table.sql("CREATE TABLE IF NOT EXISTS elsewhere AS SELECT 1 AS id, 0 AS bucket")
    job = table.job(
        table.step(source=Table("elsewhere"), planner=Hash(parts=3, column="bucket")), name="other"
    )
    JOBS["other"] = job
    table.start(job)
    table.plan()

    assert rebalance(table.engine) == ROWS
    table.sql("DROP TABLE elsewhere")


def test_who_plans_meanwhile_is_waited_for_and_then_in_the_way(table: Yard) -> None:
    """A plan looks at the table, and is there when the table is locked."""
    with table.engine.begin() as connection:
        buckets.begin_rebucket(connection, TO)
    step = table.step(planner=Hash(parts=3, column="bucket"), commit_every=2000)
    job = table.job(step)
    begun = table.start(job)
    with two(table.engine) as (a, b):
        locked = instances.lock(b, begun.batch_id)
        assert locked is not None
        JobProgress(job, b, locked).insert_plan(step, split(b, step, None))
        waiting = blocked(table.engine, a, b, lambda c: buckets.lock_table(c, TO))
        b.commit()
        waiting.result()
        assert [each.batch_id for each in buckets.find_bucket_readers(a, "bucket")] == [
            begun.batch_id
        ]


def test_a_column_that_people_write_is_theirs(table: Yard) -> None:
    for column in ("amount", "nothing"):
        with pytest.raises(PlanError, match="The database does not compute"):
            rebalance(table.engine, BucketColumn(TODO, column, 5))
