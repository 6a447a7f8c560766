"""Plans of batches as rows, and how PostgreSQL reads their partitions."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, literal_column, select, text
from sqlalchemy.exc import DataError, IntegrityError

from tasks_app.batch.planners.even import Even, Hash
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import KeyType, Range, ranges_between
from tasks_app.domain.partition.records import (
    Partition,
    PartitionKind,
    Plan,
    RowCounts,
    Status,
    Table,
)
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.batch import partition_progress, partitions
from tasks_app.pool.batch import partitions as store
from tasks_app.pool.batch.sources import buckets
from tasks_app.pool.batch.sources.measure import leaves, physical_ranges
from tasks_app.pool.batch.sources.predicate import inline, predicate
from tasks_app.pool.batch.sources.relation import find
from tasks_app.pool.runs.leases import release
from tasks_app.pool.runs.settle import settle_one
from tests.factory import claimed_task, ending
from tests.pool.interleave import blocked, two

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEYS = {
    KeyType.INTEGER: (-5, 2**62),
    KeyType.NUMERIC: (Decimal("-1.50"), 10**30),
    KeyType.TEXT: ("", "zß\U0001f40d'\"\\"),
    KeyType.UUID: (UUID(int=1), UUID("ffffffff-ffff-4fff-8fff-ffffffffffff")),
    KeyType.DATE: (date(1970, 1, 1), date(2026, 5, 1)),
    KeyType.TIMESTAMP: (datetime(1970, 1, 1), datetime(2026, 5, 1, 0, 0, 0, 1)),  # noqa: DTZ001
    KeyType.TIMESTAMPTZ: (NOW, NOW + timedelta(microseconds=1)),
}


def plan_of(*ranges: Range, key_type: KeyType = KeyType.INTEGER) -> Plan:
    return Plan("test", key_type, tuple(Partition(n, range=r) for n, r in enumerate(ranges, 1)))


def static(connection: Connection, **columns: object) -> None:
    """What somebody writes with a SQL prompt."""
    columns = {"program_id": "p", "partition_no": 1, "key_type": "integer", **columns}
    names = ", ".join(columns)
    values = ", ".join(f":{name}" for name in columns)
    connection.execute(text(f"INSERT INTO task_partition ({names}) VALUES ({values})"), columns)


@pytest.mark.parametrize("key_type", KEYS)
def test_ranges_of_all_types_come_back_as_were(connection: Connection, key_type: KeyType) -> None:
    plan = plan_of(*ranges_between(KEYS[key_type]), key_type=key_type)
    ids = store.insert(connection, "p#1", plan, batch_id=1, step="s")
    stored = store.find_by_program(connection, "p#1")
    assert tuple(each.partition for each in stored) == plan.partitions
    assert {each.partition.number: each.id for each in stored} == ids
    assert {(each.key_type, each.batch_id, each.step) for each in stored} == {(key_type, 1, "s")}
    assert partitions.find_by_batch(connection, 1) == stored
    assert partitions.get(connection, ids[1]) == stored[0]


@pytest.mark.parametrize("key_type", KEYS)
def test_values_of_all_types_come_back_equal(connection: Connection, key_type: KeyType) -> None:
    one, other = (
        Partition(n, PartitionKind.VALUES, values=(key,)) for n, key in enumerate(KEYS[key_type])
    )
    store.insert(connection, "p", Plan("test", key_type, (one, other)))
    assert [each.partition for each in store.find_by_program(connection, "p")] == [one, other]


def test_all_else_of_a_partition_comes_back(connection: Connection) -> None:
    partitions = (
        Partition(
            0, PartitionKind.HASH, Range(0, 2), owns_null=True, modulus=4, column="b", rows=7
        ),
        Partition(1, PartitionKind.SEGMENT, Range(0, 10), source="f.csv", checksum="ab"),
        Partition(2, PartitionKind.MARKED),
        Partition(3, PartitionKind.RANGE, None, owns_null=True, source="t"),
        Partition(4, PartitionKind.RANGE, Range(None, "m"), view="v", source="u"),
    )

    store.insert(connection, "p", Plan("test", KeyType.TEXT, partitions))

    assert tuple(each.partition for each in store.find_by_program(connection, "p")) == partitions


def test_instants_of_any_zone_are_kept(connection: Connection) -> None:
    connection.execute(text("SET LOCAL timezone = 'Asia/Tokyo'"))
    low = datetime(2026, 5, 1, 9, tzinfo=timezone(timedelta(hours=-3)))
    store.insert(connection, "p", plan_of(Range(low, None), key_type=KeyType.TIMESTAMPTZ))
    (stored,) = store.find_by_program(connection, "p")
    assert stored.partition.range == Range(NOW, None)


class TestTheDatabaseRefuses:
    @pytest.mark.parametrize(
        ("key_type", "column", "span", "other"),
        [
            ("integer", "num_range", "[1,5)", "[4,9)"),
            ("date", "time_range", "[2026-01-01Z,)", "(,2026-01-02Z)"),
            ("text", "text_range", "[a,c)", "[b,d)"),
        ],
    )
    def test_ranges_that_overlap(
        self, connection: Connection, key_type: str, column: str, span: str, other: str
    ) -> None:
        static(connection, key_type=key_type, **{column: span})
        apart = {"key_type": key_type, "partition_no": 2, column: other}
        static(connection, program_id="q", **apart)
        static(connection, source="t", **{**apart, "partition_no": 3})
        with pytest.raises(IntegrityError, match=f"{column}s_do_not_overlap"):
            static(connection, **apart)

    def test_ranges_that_overlap_in_two_transactions_at_once(self, engine: Engine) -> None:
        with two(engine) as (a, b):
            static(a, num_range="[1,5)")
            waiting = blocked(engine, b, a, lambda c: static(c, num_range="[4,9)", partition_no=2))
            a.commit()
            with pytest.raises(IntegrityError, match="overlap"):
                waiting.result()

    def test_a_number_twice(self, connection: Connection) -> None:
        static(connection, num_range="[1,5)")
        with pytest.raises(IntegrityError, match="task_partition_number"):
            static(connection, num_range="[5,9)")

    def test_a_value_twice(self, connection: Connection) -> None:
        listed = (Partition(n, PartitionKind.VALUES, values=("a",)) for n in (1, 2))
        with pytest.raises(IntegrityError, match="task_partition_value_pkey"):
            store.insert(connection, "p", Plan("test", KeyType.TEXT, tuple(listed)))

    def test_a_second_owner_of_null(self, connection: Connection) -> None:
        static(connection, owns_null=True)
        static(connection, owns_null=True, partition_no=2, source="t")
        with pytest.raises(IntegrityError, match="task_partition_null"):
            static(connection, owns_null=True, partition_no=3)

    def test_a_reversed_range(self, connection: Connection) -> None:
        with pytest.raises(DataError, match="must be less than or equal"):
            static(connection, num_range="[5,1)")

    @pytest.mark.parametrize(
        "columns",
        [
            {"num_range": "[1,1)"},
            {"num_range": "[1,5]"},
            {"num_range": "(1,5)"},
            {"num_range": "[1.5,5)"},
            {"text_range": "[1,5)"},
            {"num_range": "[1,5)", "key_type": "date"},
            {"num_range": "[1,5)", "key_type": "float"},
            {"num_range": "[1,5)", "text_range": "[a,b)"},
            {"time_range": "[-infinity,2026-01-01Z)", "key_type": "date"},
            {},
            {"kind": "hash", "num_range": "[0,1)"},
            {"kind": "segment", "num_range": "[0,1)"},
            {"kind": "values", "num_range": "[0,1)"},
            {"program_id": "no name", "num_range": "[0,1)"},
            {"partition_no": -1, "num_range": "[0,1)"},
            {"status": "DONE", "num_range": "[0,1)"},
        ],
    )
    def test_what_is_no_partition(self, connection: Connection, columns: dict) -> None:
        with pytest.raises(IntegrityError, match="check constraint"):
            static(connection, **columns)


class TestRuns:
    def test_a_run_starts_a_partition_notes_chunks_and_ends(self, connection: Connection) -> None:
        ids = store.insert(connection, "p#1", plan_of(Range()), batch_id=1)
        task = claimed_task(connection)
        store.assign(connection, {ids[1]: task.task_id})

        assert partition_progress.start(connection, ids[1], task.fence)
        for last in (7, 9):
            counts = RowCounts(10, 8, 1, 1)
            assert partition_progress.progress(
                connection, ids[1], task.fence, counts, {"after": last}
            )
        assert partition_progress.finish(connection, ids[1], task.fence, Status.COMPLETED)

        stored = partitions.get(connection, ids[1])
        assert stored is not None
        assert stored.checkpoint == {"after": 9}
        assert stored.counts == RowCounts(20, 16, 2, 2)
        assert (stored.status, stored.task_id) == (Status.COMPLETED, task.task_id)
        assert stored.started_at is not None
        assert stored.ended_at is not None
        assert stored.started_at < stored.ended_at

    def test_the_next_run_finds_the_checkpoint(self, connection: Connection) -> None:
        ids = store.insert(connection, "p", plan_of(Range()))
        first, second = claimed_task(connection), claimed_task(connection)
        partition_progress.start(connection, ids[1], first.fence)
        begun = partitions.get(connection, ids[1])
        partition_progress.progress(connection, ids[1], first.fence, RowCounts(5), {"after": 5})
        partition_progress.finish(connection, ids[1], first.fence, Status.FAILED, "x" * 5000)

        assert partition_progress.start(connection, ids[1], second.fence)

        stored = partitions.get(connection, ids[1])
        assert begun is not None
        assert stored is not None
        assert (stored.checkpoint, stored.counts.read) == ({"after": 5}, 5)
        assert (stored.error, stored.ended_at, stored.started_at) == (None, None, begun.started_at)

    def test_a_run_without_its_fence_writes_nothing(self, connection: Connection) -> None:
        ids = store.insert(connection, "p", plan_of(Range()))
        task = claimed_task(connection)
        partition_progress.start(connection, ids[1], task.fence)
        before = partitions.get(connection, ids[1])
        settle_one(connection, ending(task, Event.SUCCEED))

        with connection.begin_nested() as chunk:
            assert not partition_progress.progress(connection, ids[1], task.fence, RowCounts(1), {})
            chunk.rollback()
        assert not partition_progress.finish(connection, ids[1], task.fence, Status.COMPLETED)
        assert not partition_progress.start(connection, ids[1], task.fence)

        assert partitions.get(connection, ids[1]) == before

    def test_an_attempt_that_was_given_back_writes_nothing(self, connection: Connection) -> None:
        """The same task has the partition, but the next attempt of it."""
        ids = store.insert(connection, "p", plan_of(Range()))
        first = claimed_task(connection)
        partition_progress.start(connection, ids[1], first.fence)
        assert release(connection, [first.fence])
        second = claimed_task(connection, first.task_id)
        assert partition_progress.start(connection, ids[1], second.fence)
        before = partitions.get(connection, ids[1])

        with connection.begin_nested() as chunk:
            assert (
                partition_progress.progress(connection, ids[1], first.fence, RowCounts(1), {})
                is None
            )
            chunk.rollback()
        assert not partition_progress.finish(connection, ids[1], first.fence, Status.COMPLETED)
        assert partition_progress.start(connection, ids[1], first.fence) is None

        assert partitions.get(connection, ids[1]) == before
        assert partition_progress.progress(connection, ids[1], second.fence, RowCounts(1), {})

    def test_a_partition_is_only_started_by_its_own_task(self, connection: Connection) -> None:
        """So who was left behind by a restart does not take it back."""
        ids = store.insert(connection, "p#1", plan_of(Range()), batch_id=1, step="s")
        first, second = claimed_task(connection), claimed_task(connection)
        store.assign(connection, {ids[1]: second.task_id})
        assert partition_progress.start(connection, ids[1], first.fence) is None
        assert (
            partition_progress.start(connection, ids[1], second.fence)
            is partition_progress.RunSignal.STOP
        )

    def test_a_run_whose_partition_another_has_writes_nothing(self, connection: Connection) -> None:
        ids = store.insert(connection, "p", plan_of(Range()))
        first, second = claimed_task(connection), claimed_task(connection)
        partition_progress.start(connection, ids[1], first.fence)
        partition_progress.start(connection, ids[1], second.fence)
        assert not partition_progress.progress(connection, ids[1], first.fence, RowCounts(1), {})

    @pytest.mark.parametrize(
        ("status", "starts"),
        [(status, status in ("PLANNED", "RUNNING", "STOPPED", "FAILED")) for status in Status],
    )
    def test_what_is_over_does_not_start(
        self, connection: Connection, status: Status, starts: bool
    ) -> None:
        ids = store.insert(connection, "p", plan_of(Range()))
        assert partition_progress.set_status(connection, ids.values(), status, those=Status) == [
            ids[1]
        ]
        begun = partition_progress.start(connection, ids[1], claimed_task(connection).fence)
        assert (begun is not None) == starts

    def test_only_those_are_marked_that_stand_as_expected(self, connection: Connection) -> None:
        ids = store.insert(connection, "p", plan_of(*ranges_between([5])))
        partition_progress.start(connection, ids[2], claimed_task(connection).fence)
        marked = partition_progress.set_status(
            connection, ids.values(), Status.ABANDONED, those=[Status.PLANNED], error="stopped"
        )
        assert marked == [ids[1]]
        assert [each.error for each in store.find_by_program(connection, "p")] == ["stopped", None]


def test_what_has_not_started_is_planned_anew(connection: Connection) -> None:
    ids = store.insert(connection, "p", plan_of(*ranges_between([10, 20])))
    partition_progress.start(connection, ids[1], claimed_task(connection).fence)
    assert store.remove(connection, "p") == [2, 3]
    rest = tuple(Partition(n, range=r) for n, r in enumerate(ranges_between([40])[1:], 4))
    store.insert(connection, "p", Plan("test", KeyType.INTEGER, rest))
    assert [each.partition.number for each in store.find_by_program(connection, "p")] == [1, 4]
    assert store.remove(connection, "p", started=True) == [1, 4]


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def make(connection: Connection, kind: str, *bounds: str, by: str = "RANGE (id)") -> None:
    connection.execute(text(f"CREATE TABLE parts (id {kind}, other int) PARTITION BY {by}"))
    for number, bound in enumerate(bounds):
        connection.execute(text(f"CREATE TABLE parts_{number} PARTITION OF parts {bound}"))


@pytest.mark.parametrize(
    ("kind", "low", "high", "bounds"),
    [
        ("bigint", "-5", "10", (-5, 10)),
        ("numeric", "-0.5", "1.50", (Decimal("-0.5"), Decimal("1.5"))),
        ("date", "'2026-05-01'", "'2026-06-01'", (date(2026, 5, 1), date(2026, 6, 1))),
        ("timestamptz", "'2026-05-01 14:00+02'", "MAXVALUE", (NOON, None)),
        ("timestamp", "MINVALUE", "'2026-05-01 12:00'", (None, NOON.replace(tzinfo=None))),
    ],
)
def test_bounds_of_all_types_are_read(
    connection: Connection, kind: str, low: str, high: str, bounds: tuple[Any, Any]
) -> None:
    connection.execute(text("SET LOCAL timezone = 'Asia/Kolkata'"))
    make(connection, kind, f"FOR VALUES FROM ({low}) TO ({high})")
    (found,) = physical_ranges(connection, find(connection, Table("parts")))
    assert (found.name, found.range) == ("public.parts_0", Range(*bounds))


def test_the_default_partition_has_what_lies_between(connection: Connection) -> None:
    make(
        connection,
        "int",
        "FOR VALUES FROM (1) TO (5)",
        "FOR VALUES FROM (5) TO (9)",
        "FOR VALUES FROM (20) TO (MAXVALUE)",
        "DEFAULT",
    )

    found = physical_ranges(connection, find(connection, Table("parts")))

    rest = [one.range for one in found if one.name == "public.parts_3"]
    assert rest == [Range(None, 1), Range(9, 20)]


def test_a_default_alone_has_all(connection: Connection) -> None:
    make(connection, "int", "DEFAULT")
    (found,) = physical_ranges(connection, find(connection, Table("parts")))
    assert found.range == Range()


@pytest.mark.parametrize(
    ("kind", "by", "bound"),
    [
        ("int", "HASH (id)", "FOR VALUES WITH (MODULUS 1, REMAINDER 0)"),
        ("int", "LIST (id)", "FOR VALUES IN (1)"),
        ("int", "RANGE (other)", "FOR VALUES FROM (1) TO (2)"),
        ("int", "RANGE (id, other)", "FOR VALUES FROM (1, 1) TO (2, 2)"),
        ("text", "RANGE (id)", "FOR VALUES FROM ('a') TO ('b')"),
        ("int", "RANGE (id)", "FOR VALUES FROM (1) TO (5) PARTITION BY HASH (other)"),
    ],
)
def test_ranges_are_aligned_to_ranges_only(
    connection: Connection, kind: str, by: str, bound: str
) -> None:
    make(connection, kind, bound, by=by)
    with pytest.raises(PlanError, match=r"so ranges cannot be aligned .* Split it by Physical"):
        physical_ranges(connection, find(connection, Table("parts")))


def test_leaves_of_leaves_are_found(connection: Connection) -> None:
    make(connection, "int", "FOR VALUES FROM (1) TO (5) PARTITION BY HASH (other)", "DEFAULT")
    leaf = "FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    connection.execute(text(f'CREATE TABLE "Leaf" PARTITION OF parts_0 {leaf}'))
    found = leaves(connection, find(connection, Table("parts")))
    assert [str(one) for one in found] == ['public."Leaf"', "public.parts_1"]
    assert [Table.named(str(one), "id") for one in found] == found
    assert physical_ranges(connection, find(connection, Table("parts_1"))) == ()


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


def explained(connection: Connection, source: Table, partition: Partition) -> str:
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
    assert "Index" in explained(orders, source, partition)
    assert "Index" in explained(orders, source, values)


def test_buckets_that_are_stored_are_found_by_the_index(orders: Connection) -> None:
    source = Table("orders")
    buckets.add_bucket(orders, source, "bucket", 200)
    orders.exec_driver_sql("ANALYZE orders")
    stored = Hash(parts=200, column="bucket").plan(orders, source).partitions[7]
    computed = Hash(parts=200).plan(orders, source).partitions[7]
    assert "Index" in explained(orders, source, stored)
    assert "Seq Scan" in explained(orders, source, computed)


def test_rows_without_a_key_are_found_by_the_index(orders: Connection) -> None:
    orders.execute(text("UPDATE orders SET at = NULL WHERE id = 5"))
    source = Table("orders", key="at")
    *ranges, nulls = Even(parts=200).plan(orders, source).partitions
    assert nulls == Partition(201, owns_null=True)
    assert "Index" in explained(orders, source, nulls)
    assert not any(each.owns_null for each in ranges)  # beside a range it would cost the index
