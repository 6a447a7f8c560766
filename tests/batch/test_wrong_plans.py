"""Every kind of wrong plan over a real table is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.fixed import Fixed
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.planners.keys import KeyList, KeyRanges
from tasks_app.batch.planners.physical import Physical
from tasks_app.batch.planners.repository import Repository
from tasks_app.batch.validate import problems, validate
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import Fault, WrongPlanError
from tasks_app.domain.partition.records import File, Table
from tasks_app.pool.batch.sources.measure import MOST_VALUES

ORDERS = Table("orders", key="id")
GIVEN = [
    ([(None, 10), (12, None)], Fault.GAP, ["key < 10", "12 <= key", "10 <= key < 12"]),
    ([(None, 10), (8, None)], Fault.OVERLAP, ["key < 10", "8 <= key", "8 <= key < 10"]),
    ([(2, None)], Fault.SHORT, ["The least key is 1", "2 <= key", "1 <= key < 2"]),
    ([(None, 30)], Fault.SHORT, ["The greatest key is 30", "key < 30", "30 <= key"]),
    ([(None, 9), (9, 5), (9, None)], Fault.REVERSED, ["9 <= key < 5"]),
    ([(None, 9), (9, 9), (9, None)], Fault.EMPTY, ["9 <= key < 9"]),
    ([(None, "9"), (9, None)], Fault.WRONG_TYPE, ["'9'", "not of type integer"]),
    (
        [(None, 25), (25, None)],
        Fault.SPANNING,
        ["25 <= key", "orders_2 (20 <= key", "orders_rest"],
    ),
]


@pytest.fixture
def orders(connection: Connection) -> Connection:
    """Orders 1 to 30, in partitions of the database."""
    connection.execute(
        text("CREATE TABLE orders (id bigint NOT NULL, place text) PARTITION BY RANGE (id)")
    )
    for name, bound in (
        ("orders_1", "FROM (MINVALUE) TO (10)"),
        ("orders_2", "FROM (20) TO (30)"),
    ):
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
def test_rows_in_the_repository(
    orders: Connection, spans: list[str], kind: Fault, words: list[str]
) -> None:
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
