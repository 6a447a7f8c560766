"""What has not started is divided, and the whole still owns each row once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from sqlalchemy import Connection, Engine, func, select, text

from tasks_app.batch.planners.even import BIG_BYTES, Even, How
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.planners.repository import Repository
from tasks_app.batch.replan import replan
from tasks_app.batch.validate import problems
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Range
from tasks_app.domain.partition.records import Partition, Table
from tasks_app.pool.batch import partition_progress, partitions
from tasks_app.pool.batch.sources.predicate import predicate
from tasks_app.pool.batch.sources.relation import find
from tests.batch.ownership import ROWS, make_table
from tests.factory import claimed_task
from tests.pool.interleave import blocked, two


def owned(connection: Connection, partitions: Sequence[Partition]) -> list[int]:
    """Count the rows of each partition."""
    relation = find(connection, ROWS)
    conditions = [predicate(each, relation.key, relation.key_type) for each in partitions]
    counts = [select(func.count()).select_from(relation.rows_of).where(it) for it in conditions]
    return [connection.execute(each).scalar_one() for each in counts]


def rows(connection: Connection, kind: str, keys: str) -> None:
    make_table(connection, kind)
    insert = f"INSERT INTO batch_rows (key) SELECT {keys} FROM generate_series(1, 100) i"
    connection.execute(text(insert))


def test_what_has_not_started_is_divided_and_nothing_else(connection: Connection) -> None:
    rows(connection, "bigint", "nullif(i, 100)")
    ids = partitions.insert(
        connection, "p#1", Even(parts=2).plan(connection, ROWS), batch_id=1, step="s"
    )
    task = claimed_task(connection)
    partitions.assign(connection, {ids[1]: task.task_id})
    assert partition_progress.start(connection, ids[1], task.fence)

    made = replan(connection, "p#1", ROWS, Even(parts=4))

    stored = partitions.find_by_batch(connection, 1)
    assert [each.partition.number for each in stored] == [1, 2, 3, *made]
    assert list(made) == [4, 5, 6]
    assert {each.step for each in stored} == {"s"}
    plan = Repository("p#1").plan(connection, ROWS)
    assert problems(connection, ROWS, plan) == []
    assert owned(connection, plan.partitions) == [49, 12, 1, 13, 12, 13]
    assert [each.rows for each in plan.partitions] == [49, 12, None, 13, 12, 13]


def test_what_was_begun_in_an_earlier_run_is_left_as_it_is(connection: Connection) -> None:
    """It waits as if it had not started, but its checkpoint is one of its whole range."""
    rows(connection, "bigint", "i")
    ids = partitions.insert(connection, "p#1", Even(parts=2).plan(connection, ROWS), batch_id=1)
    begun = {"after": ["7"], "state": {}}
    connection.execute(
        text("UPDATE task_partition SET checkpoint = CAST(:it AS jsonb) WHERE id = :id"),
        {"it": json.dumps(begun), "id": ids[1]},
    )

    assert list(replan(connection, "p#1", ROWS, Even(parts=2))) == [3]


def test_only_some_are_divided(connection: Connection) -> None:
    rows(connection, "text", "i::text")
    partitions.insert(connection, "p#1", Even(parts=3).plan(connection, ROWS), batch_id=1)

    made = replan(connection, "p#1", ROWS, Even(parts=2), {2, 9})

    assert list(made) == [4]
    plan = Repository("p#1").plan(connection, ROWS)
    assert [each.number for each in plan.partitions] == [1, 2, 3, 4]
    assert problems(connection, ROWS, plan) == []


def test_nothing_that_waits_is_nothing_to_divide(connection: Connection) -> None:
    assert replan(connection, "p#1", ROWS, Even(parts=2)) == {}


def test_hashes_are_not_divided(connection: Connection) -> None:
    rows(connection, "bigint", "i")
    partitions.insert(connection, "p#1", Hash(parts=2).plan(connection, ROWS), batch_id=1)

    with pytest.raises(PlanError, match=r"partition 1 .* cannot be divided"):
        replan(connection, "p#1", ROWS, Even(parts=2))


@pytest.fixture
def letters(engine: Engine) -> Iterator[Table]:
    """A table that other connections see."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE letters AS SELECT generate_series(1, 9) AS id"))
    yield Table("letters")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE letters"))


def test_a_run_that_starts_meanwhile_finds_its_partition_smaller(
    engine: Engine, letters: Table
) -> None:
    with two(engine) as (a, b):
        plan = Even(parts=1).plan(a, letters)
        ids = partitions.insert(a, "p#1", plan, batch_id=1)
        task = claimed_task(a)
        partitions.assign(a, {ids[1]: task.task_id})
        a.commit()
        replan(a, "p#1", letters, Even(parts=2))
        waiting = blocked(engine, b, a, lambda c: partition_progress.start(c, ids[1], task.fence))

        a.commit()

        assert waiting.result() is not None
        seen = partitions.get(b, ids[1])
        assert seen is not None
        assert str(seen.partition) == "partition 1 (key < 5)"


def test_a_partition_that_a_run_starts_meanwhile_is_left_alone(
    engine: Engine, letters: Table
) -> None:
    with two(engine) as (a, b):
        plan = Even(parts=1).plan(a, letters)
        ids = partitions.insert(a, "p#1", plan, batch_id=1)
        task = claimed_task(a)
        partitions.assign(a, {ids[1]: task.task_id})
        a.commit()
        assert partition_progress.start(a, ids[1], task.fence)
        waiting = blocked(engine, b, a, lambda c: replan(c, "p#1", letters, Even(parts=2)))

        a.commit()

        assert waiting.result() == {}


def test_statistics_split_without_reading(connection: Connection) -> None:
    rows(connection, "bigint", "CASE WHEN i % 2 = 0 THEN 7 ELSE i END")
    with pytest.raises(PlanError, match=r"no statistics of batch_rows\. Run ANALYZE"):
        Even(parts=4, how=How.STATISTICS).plan(connection, ROWS)
    connection.execute(text("ANALYZE batch_rows"))

    plan = Even(parts=4, how=How.STATISTICS).plan(connection, ROWS)

    assert problems(connection, ROWS, plan) == []
    spans = [each.range for each in plan.partitions]
    assert spans[0] == Range(None, 9)  # one key has more than half of the rows
    assert [each.rows for each in plan.partitions] == owned(connection, plan.partitions)


@pytest.mark.parametrize("how", [How.EXACT, How.SAMPLE])
def test_estimates_are_what_is_there_even_if_one_key_has_most(
    connection: Connection, how: How
) -> None:
    rows(connection, "text", "CASE WHEN i < 60 THEN 'm' ELSE chr(i) END")

    plan = Even(parts=5, how=how).plan(connection, ROWS)

    found = owned(connection, plan.partitions)
    assert [each.rows for each in plan.partitions] == found
    assert len(found) < 5
    assert plan.warnings[0].startswith(f"{len(found)} partitions instead of 5: some keys have")
    assert plan.rows == 100


def test_a_big_table_is_sampled_and_a_small_one_is_not(connection: Connection) -> None:
    rows(connection, "bigint", "i")
    assert find(connection, ROWS).rows is None
    connection.execute(text("ANALYZE batch_rows"))
    relation = find(connection, ROWS)

    *_, small = Even(parts=2).cut(connection, relation)
    *_, big = Even(parts=2).cut(connection, replace(relation, size_bytes=BIG_BYTES + 1))

    assert (relation.rows, relation.size_bytes) == (100, 8192)
    assert (small, big) == (How.EXACT, How.SAMPLE)
    assert Even(size="4kB").plan(connection, ROWS).partitions[1].range == Range(51, None)


def test_a_partitioned_table_is_as_big_as_its_parts(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE parts (id bigint) PARTITION BY HASH (id)"))
    for part in range(2):
        bound = f"FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
        connection.execute(text(f"CREATE TABLE parts_{part} PARTITION OF parts {bound}"))
    connection.execute(text("INSERT INTO parts SELECT i FROM generate_series(1, 1000) i"))
    connection.execute(text("ANALYZE parts"))

    whole = find(connection, Table("parts"))
    halves = [find(connection, Table(f"parts_{part}")) for part in range(2)]

    assert whole.rows == sum(half.rows or 0 for half in halves) == 1000
    assert whole.size_bytes == sum(half.size_bytes or 0 for half in halves) > 0
