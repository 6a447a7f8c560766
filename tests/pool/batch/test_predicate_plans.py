"""What a partition reads is found by an index, where there is one that can."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, literal_column, select, text

from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.hashed import Hash
from tasks_app.domain.partition.records import Partition, PartitionKind, Table
from tasks_app.pool.batch.sources import buckets
from tasks_app.pool.batch.sources.predicate import inline, predicate
from tasks_app.pool.batch.sources.relation import find


@pytest.fixture
def orders(connection: Connection) -> Connection:
    """Twenty thousand orders that a scan would have to read."""
    run = connection.exec_driver_sql
    run(
        "CREATE TABLE orders (id integer PRIMARY KEY, place varchar(20), at date, small smallint,"
        " note text)"
    )
    run(
        "INSERT INTO orders SELECT i, 'p' || mod(i, 2000), date '2026-01-01' + mod(i, 5000),"
        " mod(i, 3000), repeat('x', 100) FROM generate_series(1, 20000) i"
    )
    run('CREATE INDEX ON orders (place COLLATE "C")')
    run("CREATE INDEX ON orders (at)")
    run("CREATE INDEX ON orders (small)")
    run("ANALYZE orders")
    return connection


def plan_of(connection: Connection, source: Table, partition: Partition) -> str:
    relation = find(connection, source)
    own = predicate(partition, relation.key, relation.key_type)
    query = select(literal_column("note")).select_from(relation.rows_of).where(own)
    sql = inline(connection, query).replace("%", "%%")
    return "\n".join(connection.exec_driver_sql(f"EXPLAIN {sql}").scalars())


@pytest.mark.parametrize("key", ["id", "place", "at", "small"])
def test_ranges_and_values_are_found_by_the_index(orders: Connection, key: str) -> None:
    source = Table("orders", key=key)
    partition = Even(parts=200).plan(orders, source).partitions[7]
    assert partition.range is not None
    values = Partition(1, PartitionKind.VALUES, values=partition.range.bounds)

    assert "Index" in plan_of(orders, source, partition)
    assert "Index" in plan_of(orders, source, values)


def test_buckets_that_are_stored_are_found_by_the_index(orders: Connection) -> None:
    source = Table("orders")
    buckets.add_bucket(orders, source, "bucket", 200)
    orders.exec_driver_sql("ANALYZE orders")
    stored = Hash(parts=200, column="bucket").plan(orders, source).partitions[7]
    computed = Hash(parts=200).plan(orders, source).partitions[7]

    assert "Index" in plan_of(orders, source, stored)
    assert "Seq Scan" in plan_of(orders, source, computed)


def test_rows_without_a_key_are_found_by_the_index(orders: Connection) -> None:
    orders.execute(text("UPDATE orders SET at = NULL WHERE id = 5"))
    source = Table("orders", key="at")

    *ranges, nulls = Even(parts=200).plan(orders, source).partitions

    assert nulls == Partition(201, owns_null=True)
    assert "Index" in plan_of(orders, source, nulls)
    assert not any(each.owns_null for each in ranges)  # beside a range it would cost the index
