"""Plans that are wrong, made again, or moved to another modulus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, func, select, text

from tasks_app.batch.buckets import BucketColumn, add_bucket, rebalance_online
from tasks_app.batch.job import JOBS
from tasks_app.batch.planners.even import BIG_BYTES, Even, Fixed, Hash, How, Physical
from tasks_app.batch.planners.keys import KeyList, KeyRanges, Repository
from tasks_app.batch.progress import JobProgress
from tasks_app.batch.replan import replan
from tasks_app.batch.validate import problems, split, validate
from tasks_app.domain.batch.policies import CommitEvery
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import Fault, WrongPlanError
from tasks_app.domain.partition.keys import Range
from tasks_app.domain.partition.records import File, Partition, Table
from tasks_app.pool.batch import instances, partition_progress, partitions
from tasks_app.pool.batch.sources import buckets
from tasks_app.pool.batch.sources.measure import MOST_VALUES
from tasks_app.pool.batch.sources.predicate import bucket, execute_inline, inline, predicate
from tasks_app.pool.batch.sources.relation import find
from tests.batch.yard import ROWS, TODO, Yard, make_table
from tests.factory import claimed_task
from tests.pool.interleave import blocked, two


def owned(connection: Connection, partitions: Sequence[Partition]) -> list[int]:
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


def test_a_run_started_meanwhile_has_a_smaller_range(engine: Engine, letters: Table) -> None:
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


def test_a_partition_started_meanwhile_is_left_alone(engine: Engine, letters: Table) -> None:
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
def test_estimates_are_right_even_if_one_key_has_most(connection: Connection, how: How) -> None:
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


ROWS_OF_REBALANCE = 5_000
TO = BucketColumn(TODO, "bucket", 5)
WRONG = "SELECT count(*) FROM todo WHERE bucket IS DISTINCT FROM {}"


@pytest.fixture
def table(yard: Yard) -> Iterator[Yard]:
    """Rows in some 40 blocks, with a bucket by 3; a commit has four blocks."""
    yard.rows(ROWS_OF_REBALANCE)
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
    with engine.connect() as connection:
        relation = find(connection, TODO)
        expected = inline(connection, bucket(relation.key, relation.key_type, modulus))
        wrong: int = execute_inline(connection, WRONG.format(expected)).scalar_one()
    return wrong


@pytest.mark.test_all
def test_another_modulus_in_small_commits(table: Yard) -> None:
    told: list[int] = []
    assert rebalance(table.engine, told=told.append) == ROWS_OF_REBALANCE
    assert by(table.engine, 5) == 0
    assert told[0] < ROWS_OF_REBALANCE / 3
    assert told == sorted(told)
    columns = "SELECT string_agg(attname, ' ') FROM pg_attribute WHERE attrelid = 'todo'::regclass"
    assert table.sql(f"{columns} AND attnum > 0 AND NOT attisdropped") == "id place amount bucket"
    planner = Hash(parts=5, column="bucket")
    table.completes(table.step(planner=planner, commit_every=2000))
    assert table.done == list(range(1, ROWS_OF_REBALANCE + 1))


def test_new_rows_and_new_keys_have_it_before_and_after(table: Yard) -> None:
    with table.engine.begin() as connection:
        buckets.begin_rebucket(connection, TO)
    table.sql("INSERT INTO todo (id, amount) VALUES (-1, 0)")
    table.sql("UPDATE todo SET id = -2 WHERE id = 2")
    assert by(table.engine, 3) == 0
    assert rebalance(table.engine) == ROWS_OF_REBALANCE - 1
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
    assert 0 < done == told[-1] < ROWS_OF_REBALANCE

    assert rebalance(table.engine) == ROWS_OF_REBALANCE - done

    assert by(table.engine, 5) == 0


def test_a_row_that_others_move_meanwhile_is_met_in_the_next_pass(table: Yard) -> None:
    moved = []

    def move(_rows: int) -> None:
        if not moved:  # behind the end that this pass goes to
            moved.append(
                table.sql("UPDATE todo SET amount = 1000 WHERE id > :n", n=ROWS_OF_REBALANCE - 100)
            )

    assert rebalance(table.engine, told=move) == ROWS_OF_REBALANCE
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

    assert rebalance(table.engine) == ROWS_OF_REBALANCE


def test_an_instance_of_another_table_is_in_nobodys_way(table: Yard) -> None:
    table.sql("CREATE TABLE IF NOT EXISTS elsewhere AS SELECT 1 AS id, 0 AS bucket")
    job = table.job(
        table.step(source=Table("elsewhere"), planner=Hash(parts=3, column="bucket")), name="other"
    )
    JOBS["other"] = job
    table.start(job)
    table.plan()
    assert rebalance(table.engine) == ROWS_OF_REBALANCE
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


ORDERS = Table("orders", key="id")
GIVEN = [
    ([(None, 10), (12, None)], Fault.GAP, ["key < 10", "12 <= key", "10 <= key < 12"]),
    ([(None, 10), (8, None)], Fault.OVERLAP, ["key < 10", "8 <= key", "8 <= key < 10"]),
    ([(2, None)], Fault.SHORT, ["The least key is 1", "2 <= key", "1 <= key < 2"]),
    ([(None, 30)], Fault.SHORT, ["The greatest key is 30", "key < 30", "30 <= key"]),
    ([(None, 9), (9, 5), (9, None)], Fault.REVERSED, ["9 <= key < 5"]),
    ([(None, 9), (9, 9), (9, None)], Fault.EMPTY, ["9 <= key < 9"]),
    ([(None, "9"), (9, None)], Fault.WRONG_TYPE, ["'9'", "not of type integer"]),
    ([(None, 25), (25, None)], Fault.SPANNING, ["25 <= key", "orders_2 (20 <= key", "orders_rest"]),
]


@pytest.fixture
def orders(connection: Connection) -> Connection:
    """Orders 1 to 30, in partitions of the database."""
    connection.execute(
        text("CREATE TABLE orders (id bigint NOT NULL, place text) PARTITION BY RANGE (id)")
    )
    for name, bound in (("orders_1", "FROM (MINVALUE) TO (10)"), ("orders_2", "FROM (20) TO (30)")):
        connection.execute(text(f"CREATE TABLE {name} PARTITION OF orders FOR VALUES {bound}"))
    connection.execute(text("CREATE TABLE orders_rest PARTITION OF orders DEFAULT"))
    connection.execute(
        text("INSERT INTO orders SELECT i, chr(65 + i % 3) FROM generate_series(1, 30) i")
    )
    return connection


def keep(connection: Connection, number: int, span: str | None, **columns: Any) -> None:
    """A row that a DBA writes."""
    columns = {"key_type": "integer", "num_range": span, **columns}
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", :{name}" for name in columns)
    connection.execute(
        text(
            f"INSERT INTO task_partition (program_id, partition_no{names})"
            f" VALUES ('nightly', {number}{values})"
        ),
        columns,
    )


@pytest.mark.parametrize(("ranges", "kind", "words"), GIVEN)
def test_ranges_in_code(orders: Connection, ranges: list, kind: Fault, words: list[str]) -> None:
    plan = KeyRanges(ranges).plan(orders, ORDERS)
    with pytest.raises(WrongPlanError) as refused:
        validate(orders, ORDERS, plan, aligned=kind is Fault.SPANNING)
    assert kind in {problem.kind for problem in refused.value.problems}
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    ("spans", "kind", "words"),
    [
        (["[,10)", "[12,)"], Fault.GAP, ["key < 10", "10 <= key < 12"]),
        (["[2,)"], Fault.SHORT, ["1 <= key < 2"]),
        (["[1,30)"], Fault.SHORT, ["30 <= key"]),
        (["[1,25)", "[25,31)"], Fault.SPANNING, ["25 <= key < 31", "orders_rest"]),
        (["[,)"], Fault.TOO_FEW, ["1 partitions", "2 are needed"]),
    ],
)
def test_kept_ranges(orders: Connection, spans: list[str], kind: Fault, words: list[str]) -> None:
    for number, span in enumerate(spans):
        keep(orders, number, span)
    plan = Repository("nightly").plan(orders, ORDERS)
    aligned, at_least = kind is Fault.SPANNING, 2 if kind is Fault.TOO_FEW else 1
    with pytest.raises(WrongPlanError) as refused:
        validate(orders, ORDERS, plan, aligned=aligned, at_least=at_least)
    assert kind in {problem.kind for problem in refused.value.problems}
    assert all(word in str(refused.value) for word in words)


def test_rows_in_the_repository_that_are_right(orders: Connection) -> None:
    keep(orders, 1, "[,10)")
    keep(orders, 2, "[10,20)")
    keep(orders, 3, "[20,)")
    plan = Repository("nightly").plan(orders, ORDERS)
    assert problems(orders, ORDERS, plan, at_least=3) == []
    (spanning,) = problems(orders, ORDERS, plan, aligned=True)
    assert spanning.numbers == (3,)


def test_a_bound_of_the_right_column_that_is_no_key(orders: Connection) -> None:
    orders.execute(text("CREATE TABLE tickets (id uuid)"))
    keep(orders, 1, None, key_type="uuid", text_range="[,hello)")
    keep(orders, 2, None, key_type="uuid", text_range="[hello,)")
    tickets = Table("tickets")
    first, _ = problems(orders, tickets, Repository("nightly").plan(orders, tickets))
    assert first.kind is Fault.WRONG_TYPE
    assert "'hello' is not of type uuid" in str(first)


def test_a_repository_for_another_type_of_key(orders: Connection) -> None:
    keep(orders, 1, None, key_type="text", text_range="[,)")
    (problem,) = problems(orders, ORDERS, Repository("nightly").plan(orders, ORDERS))
    assert problem.kind is Fault.WRONG_TYPE
    assert "splits by text, but the key is of type integer" in str(problem)


def test_values_that_no_list_has(orders: Connection) -> None:
    places = Table("orders", key="place")
    orders.execute(text("INSERT INTO orders VALUES (31, NULL)"))
    lists = {1: ["A"], 2: ["B", None]}

    (problem,) = problems(orders, places, KeyList(lists).plan(orders, places))
    assigned = KeyList(lists, auto_assign=True).plan(orders, places)

    assert problem.kind is Fault.UNOWNED
    assert "No partition owns 'C' (10 rows)" in str(problem)
    assert problems(orders, places, assigned) == []
    assert assigned.warnings == ("Assigned automatically: C.",)
    assert [(each.values, each.rows) for each in assigned.partitions] == [
        (("A", "C"), 20),
        (("B",), 11),
    ]


def test_rows_without_a_key_that_no_list_has(orders: Connection) -> None:
    orders.execute(text("INSERT INTO orders VALUES (31, NULL)"))
    places = Table("orders", key="place")
    (problem,) = problems(orders, places, KeyList({1: ["A", "B", "C"]}).plan(orders, places))
    assert "no partition owns NULL" in str(problem)


def test_keys_that_cannot_be_listed(orders: Connection) -> None:
    orders.execute(text("CREATE TABLE days (id date)"))
    orders.execute(text("INSERT INTO days VALUES ('2026-05-01'), ('infinity')"))
    days = Table("days")
    (problem,) = problems(orders, days, KeyList({1: []}, auto_assign=True).plan(orders, days))
    assert problem.kind is Fault.UNOWNED
    assert "keys that cannot be listed, like infinity. Split by ranges or by hash" in str(problem)


def test_too_many_keys_to_list(orders: Connection) -> None:
    more = f"INSERT INTO orders SELECT i, '' FROM generate_series(100, 100 + {MOST_VALUES}) i"
    orders.execute(text(more))
    with pytest.raises(PlanError, match=f"orders has more than {MOST_VALUES} different keys"):
        KeyList({1: []}).plan(orders, ORDERS)


def test_a_partition_that_the_database_got_since(orders: Connection) -> None:
    plan = Physical().plan(orders, ORDERS)
    assert problems(orders, ORDERS, plan) == []
    orders.execute(text("CREATE TABLE orders_9 PARTITION OF orders FOR VALUES FROM (90) TO (99)"))
    assert problems(orders, ORDERS, plan) == []
    orders.execute(text("INSERT INTO orders VALUES (91)"))
    (problem,) = problems(orders, ORDERS, plan)
    assert "No partition covers public.orders_9" in str(problem)


def test_a_source_that_is_none(orders: Connection) -> None:
    keep(orders, 1, "[,)", source="elsewhere")
    found = problems(orders, ORDERS, Repository("nightly").plan(orders, ORDERS))
    assert {each.kind for each in found} == {Fault.NO_SOURCE, Fault.SHORT}
    assert "public.orders_1, public.orders_2, public.orders_rest" in str(found[0])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Table("nowhere"), "There is no table nowhere"),
        (Table("orders", key="nothing"), "orders has no column nothing"),
        (Table("Orders"), 'There is no table "Orders"'),
        (Table("orders; DROP TABLE orders"), "There is no table"),
    ],
)
def test_a_table_that_is_not_there(orders: Connection, source: Table, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Even(parts=2).plan(orders, source)


def test_a_key_of_a_type_that_cannot_be_split(orders: Connection) -> None:
    orders.execute(text("CREATE TABLE odd (id float8)"))
    with pytest.raises(PlanError, match="id of odd is of type double precision, which cannot"):
        Hash(parts=2).plan(orders, Table("odd"))


@pytest.mark.parametrize(
    ("planner", "words"),
    [
        (Fixed(0), "The width is 0"),
        (Fixed(2.5), r"cannot be split into ranges of 2\.5"),  # type: ignore[arg-type]
        (KeyList({}), "There are no lists"),
        (Repository("unknown"), "no rows of program unknown"),
    ],
)
def test_what_cannot_be_planned(orders: Connection, planner: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        planner.plan(orders, ORDERS)


def test_too_many_ranges(orders: Connection) -> None:
    orders.execute(text("INSERT INTO orders VALUES (1000000)"))
    with pytest.raises(PlanError, match="Keys from 1 to 1000000 make 1000000 ranges of 1, more"):
        Fixed(1).plan(orders, ORDERS)


def test_no_partitions_and_no_file(orders: Connection) -> None:
    with pytest.raises(PlanError, match=r"public\.orders_1 has no partitions"):
        Physical().plan(orders, Table("orders_1", schema="public"))
    with pytest.raises(PlanError, match="There is no file"):
        problems(orders, File("/nowhere"), Even(parts=1).plan(orders, ORDERS))


@pytest.mark.parametrize(
    "amount", [{}, {"parts": 1, "rows": 1}, {"parts": 0}, {"size": "1 furlong"}, {"rows": -1}]
)
def test_an_amount_that_is_none(amount: dict) -> None:
    with pytest.raises(PlanError):
        Even(**amount)


def test_nothing_of_a_wrong_plan_is_in_the_repository(orders: Connection) -> None:
    with pytest.raises(WrongPlanError):
        validate(orders, ORDERS, KeyRanges([(1, 2)]).plan(orders, ORDERS))
    assert orders.execute(text("SELECT count(*) FROM task_partition")).scalar_one() == 0
