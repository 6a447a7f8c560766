"""What each planner makes of any keys is a plan without problems, and gives each row one owner."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event, text

from tasks_app.batch.planners import Planner
from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.fixed import Fixed
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.planners.keys import KeyList, KeyRanges
from tasks_app.batch.planners.physical import Physical
from tasks_app.batch.planners.repository import Repository
from tasks_app.batch.validate import problems
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.keys import KeyType, ranges_between
from tasks_app.domain.partition.records import Plan, Table
from tasks_app.pool.batch import partitions
from tasks_app.pool.batch.sources.measure import extent
from tasks_app.pool.batch.sources.relation import find
from tests.batch.ownership import COLUMNS, ROWS, SOME, fill, make_table, read, some_keys

whole = settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def is_odd(key: Any) -> bool:
    """Whether no bound can name it."""
    return "infinity" in str(key).lower() or str(key) == "NaN" or str(key).endswith("BC")


def assert_each_row_has_one_owner(
    connection: Connection, plan: Plan, rows: int, source: Table = ROWS
) -> None:
    assert problems(connection, source, plan) == []
    seen = Counter(row for each in plan.partitions for row in read(connection, source, plan, each))
    assert set(seen.values()) <= {1}
    assert len(seen) == rows


def given_table(connection: Connection, key_type: KeyType, keys: Sequence[Any]) -> None:
    make_table(connection, COLUMNS[key_type])
    fill(connection, COLUMNS[key_type], keys)


@pytest.mark.test_all
@pytest.mark.parametrize("planner", [Even(parts=3), Even(rows=4, over=2), Hash(parts=3)])
@pytest.mark.parametrize("key_type", COLUMNS)
@given(data=st.data())
@whole
def test_even_and_hash(
    connection: Connection, key_type: KeyType, planner: Planner, data: st.DataObject
) -> None:
    keys = data.draw(some_keys(key_type))
    given_table(connection, key_type, keys)

    assert_each_row_has_one_owner(connection, planner.plan(connection, ROWS), len(keys))


@pytest.mark.parametrize("key_type", COLUMNS)
def test_ends_of_keys_are_found_with_and_without_an_index(
    connection: Connection, key_type: KeyType
) -> None:
    make_table(connection, COLUMNS[key_type])
    found = []
    order = 'COLLATE "C"' if key_type is KeyType.TEXT else ""
    for indexed in ("id", f"key {order}"):
        connection.execute(text(f"CREATE INDEX ON batch_rows ({indexed})"))
        for keys in ([], [None], [None, *SOME[key_type]], SOME[key_type]):
            fill(connection, COLUMNS[key_type], keys)
            relation = find(connection, ROWS)
            assert relation.is_indexed == indexed.startswith("key")
            found.append(extent(connection, relation))

    assert found[:4] == found[4:]
    assert [each.nulls for each in found[:4]] == [False, True, True, False]
    assert [each.has_keys for each in found[:4]] == [False, False, True, True]


@pytest.mark.parametrize(
    "planner", [Even(parts=2), Hash(parts=2), KeyList({1: [], 2: []}, auto_assign=True)]
)
def test_text_is_split_by_code_points_whatever_the_columns_language(
    connection: Connection, planner: Planner
) -> None:
    """Other orders change with the system's library; under some ``a`` is equal to ``A``.

    The servers of the tests know no other order, so the statements are looked at.
    """
    make_table(connection, "text")
    fill(connection, "text", ["a", "A", "b", "ä"])
    seen: list[str] = []
    event.listen(connection, "before_cursor_execute", lambda *told: seen.append(told[2]))

    plan = planner.plan(connection, ROWS)
    for each in plan.partitions:
        read(connection, ROWS, plan, each)

    compared = [
        sql for sql in seen if "batch_rows" in sql and re.search("[<>=] |ORDER BY key", sql)
    ]
    assert compared
    assert all('COLLATE "C"' in sql for sql in compared)


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("key_type", "widths"),
    [
        (KeyType.INTEGER, [1, 7, 2**50]),
        (KeyType.NUMERIC, [40, Decimal("97.3"), Decimal(1000)]),
        (KeyType.DATE, [timedelta(days=9_999), timedelta(days=40_000)]),
        (KeyType.TIMESTAMP, [timedelta(hours=777_777), timedelta(days=40_000)]),
        (KeyType.TIMESTAMPTZ, [timedelta(hours=777_777), timedelta(days=40_000)]),
    ],
)
@given(data=st.data())
@whole
def test_fixed(
    connection: Connection, key_type: KeyType, widths: list[Any], data: st.DataObject
) -> None:
    keys = data.draw(some_keys(key_type))
    given_table(connection, key_type, keys)
    planner = Fixed(data.draw(st.sampled_from(widths)))
    with suppress(PlanError):  # too many ranges
        plan = planner.plan(connection, ROWS)
        assert_each_row_has_one_owner(connection, plan, len(keys))


@pytest.mark.test_all
@pytest.mark.parametrize("key_type", COLUMNS)
@given(data=st.data())
@whole
def test_lists(connection: Connection, key_type: KeyType, data: st.DataObject) -> None:
    keys = [key for key in data.draw(some_keys(key_type)) if not is_odd(key)]
    given_table(connection, key_type, keys)
    planner = KeyList({1: [], 2: [], 3: []}, auto_assign=True)

    plan = planner.plan(connection, ROWS)

    assert_each_row_has_one_owner(connection, plan, len(keys))
    partitions.remove(connection, "p", started=True)
    partitions.insert(connection, "p", plan)
    again = Repository("p").plan(connection, ROWS)
    assert_each_row_has_one_owner(connection, again, len(keys))


@pytest.mark.test_all
@pytest.mark.parametrize("key_type", COLUMNS)
@given(data=st.data())
@whole
def test_ranges_that_somebody_gave_or_keeps_in_the_repository(
    connection: Connection, key_type: KeyType, data: st.DataObject
) -> None:
    keys = data.draw(some_keys(key_type))
    given_table(connection, key_type, keys)
    even = Even(parts=data.draw(st.integers(1, 6))).plan(connection, ROWS)
    bounds = [each.range.low for each in even.partitions if each.range and each.range.low]
    given_ranges = [(span.low, span.high) for span in ranges_between(bounds)]

    plan = KeyRanges(given_ranges).plan(connection, ROWS)

    assert_each_row_has_one_owner(connection, plan, len(keys))
    partitions.remove(connection, "p", started=True)
    partitions.insert(connection, "p", plan)
    again = Repository("p").plan(connection, ROWS)
    assert_each_row_has_one_owner(connection, again, len(keys))


def make_partitioned(connection: Connection, kind: str) -> None:
    """A table in three parts, whatever the keys are."""
    if connection.execute(text("SELECT to_regclass('batch_rows') IS NOT NULL")).scalar():
        connection.execute(text("DELETE FROM batch_rows"))
        return
    connection.execute(
        text(f"CREATE TEMP TABLE batch_rows (id bigint, key {kind}) PARTITION BY HASH (id)")
    )
    for part in range(3):
        connection.execute(
            text(
                f'CREATE TEMP TABLE "part {part}" PARTITION OF batch_rows'
                f" FOR VALUES WITH (MODULUS 3, REMAINDER {part})"
            )
        )


@pytest.mark.test_all
@pytest.mark.parametrize("each", [Amount(parts=1), Amount(parts=3), Amount(rows=2)])
@pytest.mark.parametrize("key_type", COLUMNS)
@given(data=st.data())
@whole
def test_physical(
    connection: Connection, key_type: KeyType, each: Amount, data: st.DataObject
) -> None:
    keys = data.draw(some_keys(key_type))
    kind = COLUMNS[key_type]
    make_partitioned(connection, kind)
    rows = [{"id": number, "key": key} for number, key in enumerate(keys)]
    if rows:
        insert = f"INSERT INTO batch_rows (id, key) VALUES (:id, CAST(:key AS {kind}))"
        connection.execute(text(insert), rows)

    plan = Physical(each).plan(connection, ROWS)

    assert_each_row_has_one_owner(connection, plan, len(keys))
    assert len({part.source for part in plan.partitions}) == 3
