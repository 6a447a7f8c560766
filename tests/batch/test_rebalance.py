"""A bucket column gets another modulus in small commits, and nobody reads a mixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from tasks_app.batch import rebalance as room
from tasks_app.batch.job import JOBS
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.progress import Progress
from tasks_app.batch.rebalance import rebalance
from tasks_app.batch.split import split
from tasks_app.domain.batch.policies import CommitEvery
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch import buckets, instances, rebucket
from tasks_app.pool.batch.rebucket import Bucket
from tests.batch.yard import TODO, Yard
from tests.pool.interleave import blocked, two

ROWS = 5_000
TO = Bucket(TODO, "bucket", 5)
WRONG = "SELECT count(*) FROM todo WHERE bucket IS DISTINCT FROM {}"


@pytest.fixture
def table(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    """Rows in some 40 blocks, with a bucket by 3; a batch has four blocks."""
    yard.rows(ROWS)
    with yard.engine.begin() as connection:
        buckets.add_bucket(connection, TODO, "bucket", 3)
    monkeypatch.setattr(room, "EACH", CommitEvery(4))
    yield yard
    for function in (f"todo:tasks_app:bucket:{number}" for number in (2, 5, 9)):
        yard.sql(f'DROP FUNCTION IF EXISTS "{function}" CASCADE')
    for name in ("other", "job"):
        JOBS.pop(name, None)


def by(engine: Engine, modulus: int) -> int:
    """How many rows have a bucket by another modulus."""
    with engine.connect() as connection:
        relation = rebucket.find(connection, TODO)
        expected = rebucket.inline(
            connection, rebucket.bucket(relation.key, relation.key_type, modulus)
        )
        wrong: int = rebucket.execute(connection, WRONG.format(expected)).scalar_one()
    return wrong


def test_another_modulus_in_small_commits(table: Yard) -> None:
    told: list[int] = []

    assert rebalance(table.engine, TO, told.append) == ROWS

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
        rebucket.begin(connection, TO)
    table.sql("INSERT INTO todo (id, amount) VALUES (-1, 0)")
    table.sql("UPDATE todo SET id = -2 WHERE id = 2")
    assert by(table.engine, 3) == 0

    assert rebalance(table.engine, TO) == ROWS - 1

    table.sql("INSERT INTO todo (id, amount) VALUES (-3, 0)")
    table.sql("UPDATE todo SET id = -4 WHERE id = 4")
    assert by(table.engine, 5) == 0


def test_the_index_may_take_longer_than_statements_of_ours(
    table: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, spans = rebucket.index, []

    def looking(connection: Any, new: Bucket) -> None:
        connection.exec_driver_sql("SET statement_timeout = '30s'")
        index(connection, new)
        names = ("statement_timeout", "lock_timeout")
        spans.extend(connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names)

    monkeypatch.setattr(rebucket, "index", looking)
    rebalance(table.engine, TO)

    assert spans == ["0", "0"]
    with table.engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() != "30s"


def test_it_goes_on_where_it_was_interrupted(table: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    fill, calls = rebucket.fill, [0]

    def dying(*args: Any) -> int:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return fill(*args)

    monkeypatch.setattr(rebucket, "fill", dying)
    with pytest.raises(KeyboardInterrupt):
        rebalance(table.engine, TO)
    assert by(table.engine, 3) == 0
    done = table.sql("SELECT count(*) FROM todo WHERE bucket__5 IS NOT NULL")
    assert 0 < done < ROWS

    assert rebalance(table.engine, TO) == ROWS - done

    assert by(table.engine, 5) == 0


def test_a_row_that_others_move_meanwhile_is_met_in_the_next_pass(
    table: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, moved = rebucket.fill, []

    def beside(connection: Any, new: Bucket, first: int, number: int) -> int:
        written = fill(connection, new, first, number)
        if not moved:  # behind the end that this pass goes to
            moved.append(table.sql("UPDATE todo SET amount = 1000 WHERE id > :n", n=ROWS - 100))
        return written

    monkeypatch.setattr(rebucket, "fill", beside)

    assert rebalance(table.engine, TO) == ROWS

    assert by(table.engine, 5) == 0


def test_again_and_again(table: Yard) -> None:
    rebalance(table.engine, TO)
    with pytest.raises(PlanError, match="is by 5 already"):
        rebalance(table.engine, TO)
    with table.engine.begin() as connection:
        rebucket.begin(connection, Bucket(TODO, "bucket", 9))  # given up

    rebalance(table.engine, Bucket(TODO, "bucket", 2))

    assert by(table.engine, 2) == 0
    triggers = (
        "SELECT array_agg(tgname ORDER BY 1) FROM pg_trigger WHERE tgrelid = 'todo'::regclass"
    )
    assert table.sql(triggers) == ["tasks_app:bucket:2"]


def test_it_is_refused_while_an_instance_that_is_not_complete_reads_by_it(table: Yard) -> None:
    job = table.job(table.step(planner=Hash(parts=3, column="bucket"), commit_every=2000))
    begun = table.start(job)
    table.plan()

    with pytest.raises(PlanError, match=rf"read todo by bucket .*: {begun.batch_id} \(job, step\)"):
        rebalance(table.engine, TO)
    assert table.sql("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'todo'::regclass") == 0
    JOBS["job"] = job  # who knows it, knows which table it reads
    with pytest.raises(PlanError, match="Let them come to their end"):
        rebalance(table.engine, TO)
    table.bench.drain()

    assert rebalance(table.engine, TO) == ROWS


def test_an_instance_of_another_table_is_in_nobodys_way(table: Yard) -> None:
    table.sql("CREATE TABLE IF NOT EXISTS elsewhere AS SELECT 1 AS id, 0 AS bucket")
    job = table.job(
        table.step(source=Table("elsewhere"), planner=Hash(parts=3, column="bucket")), name="other"
    )
    JOBS["other"] = job
    table.start(job)
    table.plan()

    assert rebalance(table.engine, TO) == ROWS
    table.sql("DROP TABLE elsewhere")


def test_who_plans_meanwhile_is_waited_for_and_then_in_the_way(table: Yard) -> None:
    """A plan looks at the table, and is there when the table is locked."""
    with table.engine.begin() as connection:
        rebucket.begin(connection, TO)
    step = table.step(planner=Hash(parts=3, column="bucket"), commit_every=2000)
    job = table.job(step)
    begun = table.start(job)
    with two(table.engine) as (a, b):
        locked = instances.lock(b, begun.batch_id)
        assert locked is not None
        Progress(job, b, locked).enter(step, split(b, step, None))
        waiting = blocked(table.engine, a, b, lambda c: rebucket.lock(c, TO))
        b.commit()
        waiting.result()
        assert [each.batch_id for each in rebucket.readers(a, "bucket")] == [begun.batch_id]


def test_a_column_that_people_write_is_theirs(table: Yard) -> None:
    for column in ("amount", "nothing"):
        with pytest.raises(PlanError, match="no column that the database computes"):
            rebalance(table.engine, Bucket(TODO, column, 5))
