"""Views and stored buckets: the database itself splits."""

from __future__ import annotations

import pytest
from sqlalchemy import BigInteger, Connection, column, select, table, text

from tasks_app.batch.planners import Planner
from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.planners.indicator import Indicator
from tasks_app.batch.planners.keys import KeyList, KeyRanges
from tasks_app.batch.planners.physical import Physical
from tasks_app.batch.planners.views import Views
from tasks_app.batch.validate import problems
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import Fault
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Plan, Table
from tasks_app.pool.batch.sources import buckets
from tasks_app.pool.batch.sources.predicate import drop_views
from tasks_app.pool.batch.sources.relation import Query
from tests.batch.ownership import COLUMNS, ROWS, SOME, fill, make_table, read


def ids(connection: Connection, plan: Plan, source: Table = ROWS) -> list[int]:
    return sorted(i for each in plan.partitions for i in read(connection, source, plan, each))


@pytest.mark.parametrize("key_type", COLUMNS)
@pytest.mark.parametrize(
    "planner", [Even(parts=3), Hash(parts=3), KeyList({1: [], 2: []}, auto_assign=True)]
)
def test_views_show_each_row_once(
    connection: Connection, key_type: KeyType, planner: Planner
) -> None:
    make_table(connection, COLUMNS[key_type])
    keys = [*SOME[key_type], None]
    if isinstance(planner, KeyList):
        keys = [key for key in keys if "infinity" not in str(key)]
    fill(connection, COLUMNS[key_type], keys)

    plan = Views(planner, "of %s").plan(connection, ROWS)

    assert problems(connection, ROWS, plan) == []
    shown = [
        row
        for each in plan.partitions
        for row in connection.execute(text(f"SELECT id FROM {each.view}")).scalars()
    ]
    assert sorted(shown) == ids(connection, plan)
    assert len(shown) == len(keys)


def test_views_are_made_anew_and_dropped(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE parts (id bigint, name text)"))
    connection.execute(text("INSERT INTO parts SELECT i FROM generate_series(1, 9) i"))
    parts = Table("parts", schema="public")
    planner = Views(KeyRanges([(None, 4), (4, None)]), "parts", "public")
    first = planner.plan(connection, parts)
    again = planner.plan(connection, parts)

    assert [each.view for each in again.partitions] == ["public.parts_1", "public.parts_2"]
    assert connection.execute(text("SELECT count(*) FROM parts_1")).scalar() == 3
    assert drop_views(connection, first.partitions) == ["public.parts_1", "public.parts_2"]
    assert drop_views(connection, again.partitions)
    found = connection.execute(text("SELECT to_regclass('parts_1')")).scalar()
    assert found is None


def test_views_of_physical_partitions(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE parts (id bigint) PARTITION BY LIST (id)"))
    connection.execute(text('CREATE TABLE "Part One" PARTITION OF parts FOR VALUES IN (1)'))
    connection.execute(text("CREATE TABLE parts_rest PARTITION OF parts DEFAULT"))
    connection.execute(text("INSERT INTO parts VALUES (1), (2), (NULL)"))
    parts = Table("parts")

    plan = Views(Physical(), "parts_view").plan(connection, parts)

    assert problems(connection, parts, plan) == []
    assert {each.source for each in plan.partitions} == {'public."Part One"', "public.parts_rest"}
    counts = [
        connection.execute(text(f"SELECT count(*) FROM {each.view}")).scalar()
        for each in plan.partitions
    ]
    assert sorted(counts) == [1, 2]


def test_marked_rows_have_no_view(connection: Connection) -> None:
    make_table(connection, "bigint")

    with pytest.raises(PlanError, match="There is no view of partition 1"):
        Views(Indicator(parts=1), "v").plan(connection, ROWS)


@pytest.mark.parametrize("key_type", COLUMNS)
def test_a_stored_bucket_splits_as_the_hash_does(connection: Connection, key_type: KeyType) -> None:
    make_table(connection, COLUMNS[key_type])
    fill(connection, COLUMNS[key_type], [*SOME[key_type], None])
    buckets.add_bucket(connection, ROWS, "in bucket", 3)
    fill(connection, COLUMNS[key_type], [*SOME[key_type], None])  # of new rows, too

    stored = Hash(parts=3, column="in bucket").plan(connection, ROWS)
    computed = Hash(parts=3).plan(connection, ROWS)

    assert problems(connection, ROWS, stored) == []
    for one, other in zip(stored.partitions, computed.partitions, strict=True):
        assert read(connection, ROWS, stored, one) == read(connection, ROWS, computed, other)
    assert len(ids(connection, stored)) == len(SOME[key_type]) + 1


def test_another_modulus_is_computed_anew(connection: Connection) -> None:
    make_table(connection, "bigint")
    fill(connection, "bigint", range(100))
    buckets.add_bucket(connection, ROWS, "bucket", 8)
    few = Hash(parts=3, column="bucket").plan(connection, ROWS)
    assert [each.kind for each in problems(connection, ROWS, few)] == [Fault.SHORT]

    buckets.rebalance(connection, ROWS, "bucket", 3)

    assert problems(connection, ROWS, few) == []
    assert len(ids(connection, few)) == 100
    buckets.drop_bucket(connection, ROWS, "bucket")
    with pytest.raises(PlanError, match="The database does not compute bucket of batch_rows"):
        buckets.rebalance(connection, ROWS, "bucket", 3)


def test_rows_without_a_bucket_need_an_owner(connection: Connection) -> None:
    make_table(connection, "bigint")
    fill(connection, "bigint", [1, 2])
    connection.execute(text("ALTER TABLE batch_rows ADD COLUMN bucket integer"))
    before = Hash(parts=2, column="bucket").plan(connection, ROWS)
    connection.execute(text("UPDATE batch_rows SET bucket = 1 WHERE key = 1"))

    assert problems(connection, ROWS, before) == []
    assert len(ids(connection, before)) == 2


def test_a_query_is_split_like_a_table(connection: Connection) -> None:
    make_table(connection, "bigint")
    fill(connection, "bigint", [*range(20), None])
    rows = table("batch_rows", column("id"), column("key", BigInteger))
    source = Query(select(rows.c.id, (rows.c.key % 7).label("rest")), "rest")

    for planner in (Even(parts=3), Hash(parts=3), KeyRanges([(None, 3), (3, None)])):
        plan = planner.plan(connection, source)

        assert problems(connection, source, plan) == []
        seen = [i for each in plan.partitions for i in read(connection, source, plan, each)]
        assert len(seen) == len(set(seen)) == 21
