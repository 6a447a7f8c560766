"""Planners: each covers every row once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event, text

from tasks_app.batch.execution.chunk import process_by_halves
from tasks_app.batch.files.segments import SegmentReader, file_of
from tasks_app.batch.planners import Planner
from tasks_app.batch.planners.even import Even, Fixed, Hash, How, Indicator, Physical
from tasks_app.batch.planners.flat_file import Extract
from tasks_app.batch.planners.keys import KeyList, KeyRanges, Repository, Views
from tasks_app.batch.validate import problems
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.keys import KeyType, ranges_between
from tasks_app.domain.partition.records import Marker, Partition, PartitionKind, Plan, Table
from tasks_app.pool.batch import partitions
from tasks_app.pool.batch.sources import buckets, marks
from tasks_app.pool.batch.sources.measure import extent
from tasks_app.pool.batch.sources.relation import find
from tests.batch.yard import COLUMNS, ROWS, SOME, fill, make_table, owners, read, some_keys

PARTS = 4
SOURCE = Table('odd "rows"; --', key='the "key" %s')
MARKER = Marker("mark")
DATA: dict[str, tuple[KeyType, list[Any]]] = {
    "none": (KeyType.INTEGER, []),
    "one row": (KeyType.INTEGER, [7]),
    "one row without a key": (KeyType.TEXT, [None]),
    "fewer rows than partitions": (KeyType.INTEGER, [3, 1]),
    "one key only": (KeyType.INTEGER, [5] * 50),
    "skewed": (KeyType.INTEGER, [1] * 80 + list(range(100, 120))),
    "skewed to the end": (KeyType.INTEGER, [*range(20), *[9999] * 80]),
    "negative": (KeyType.INTEGER, [-(2**63), -1, 0, 1, 2**63 - 1, *range(-30, 30, 7)]),
    "NULLs": (KeyType.INTEGER, [None] * 10 + list(range(10))),
    "only NULLs": (KeyType.DATE, [None] * 3),
    "text": (KeyType.TEXT, ["", " ", "a", "A", "ä", "a\u0308", "\U0001f40d", "z", "Z", "10", "9"]),
    "text to be quoted": (KeyType.TEXT, ["'", '"', "\\", "%s", ":x", "\n", "{}", "--"]),
    "numbers beyond all bounds": (KeyType.NUMERIC, ["NaN", "Infinity", "-Infinity", "0.10", "0.1"]),
    "times beyond all bounds": (
        KeyType.TIMESTAMPTZ,
        ["infinity", "-infinity", "2026-03-29 01:30Z", "2026-10-25 02:30+01", "4713-01-01 BC"],
    ),
    "days": (KeyType.DATE, ["2024-02-29", "0001-01-01", "9999-12-31", None]),
    "uuids": (KeyType.UUID, ["f" * 32, "0" * 32, "8" * 32, None]),
}
PLANNERS = (
    *("even", "sampled", "over", "fixed", "ranges", "list", "hash", "stored hash"),
    *("views", "physical", "indicator", "indicator beside", "extract", "repository"),
)
WIDTHS = {KeyType.INTEGER: 2**61, KeyType.NUMERIC: 7}


def make(connection: Connection, kind: str, keys: list[Any], *, split: bool) -> None:
    """The table, in two parts of the database if it is to be."""
    name, key = '"odd ""rows""; --"', '"the ""key"" %s"'
    parted = "PARTITION BY HASH (id)" if split else ""
    run = connection.exec_driver_sql
    columns = f"id bigint, {key} {kind}, mark text".replace("%", "%%")
    run(f"CREATE TABLE {name} ({columns}) {parted}")
    for part in range(2 if split else 0):
        bound = f"FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
        run(f'CREATE TABLE "Part; {part}" PARTITION OF {name} {bound}')
    for number, one in enumerate(keys):
        values = {"id": number, "key": one}
        run(f"INSERT INTO {name} VALUES (%(id)s, CAST(%(key)s AS {kind}))", values)


def planner_of(connection: Connection, name: str, key_type: KeyType, folder: Path) -> Planner:
    if name == "stored hash":
        buckets.add_bucket(connection, SOURCE, "the bucket", PARTS)
    if name == "repository":
        plan = Even(parts=PARTS).plan(connection, SOURCE)
        partitions.insert(connection, "p", plan)
    if name == "indicator beside":
        marks.fill(connection, "p", SOURCE)
    known: dict[str, Planner] = {
        "even": Even(parts=PARTS),
        "sampled": Even(parts=PARTS, how=How.SAMPLE),
        "over": Even(rows=20, over=3),
        "fixed": Fixed(WIDTHS.get(key_type, timedelta(days=400_000))),
        "ranges": KeyRanges([(None, None)]),
        "list": KeyList({number: [] for number in range(PARTS)}, auto_assign=True),
        "hash": Hash(parts=PARTS),
        "stored hash": Hash(parts=PARTS, column="the bucket"),
        "views": Views(Even(parts=PARTS), 'odd "view" %s'),
        "physical": Physical(Amount(parts=2)),
        "indicator": Indicator(parts=PARTS, marker=MARKER),
        "indicator beside": Indicator(parts=PARTS),
        "extract": Extract(parts=PARTS, path=str(folder / "rows.csv")),
        "repository": Repository("p"),
    }
    return known[name]


def ids_of(connection: Connection, plan: Plan, each: Partition) -> list[int]:
    if each.kind is PartitionKind.SEGMENT:
        reader = SegmentReader(file_of(SOURCE, each), each)
        return [int(row["id"]) for row in reader.read(connection, None, 1_000_000)]
    if each.kind is not PartitionKind.MARKED:
        return list(read(connection, SOURCE, plan, each))
    if plan.method == "indicator":
        taken = marks.take(connection, SOURCE, MARKER, 30)
    else:
        taken = marks.take_beside(connection, "p", SOURCE, 30, each.number)
    return [row["id"] for row in taken]


def fits(name: str, data: str) -> bool:
    """Whether a planner takes such keys; what it refuses is tested in other files."""
    key_type, _ = DATA[data]
    if name == "fixed":
        return key_type not in (KeyType.TEXT, KeyType.UUID)
    if name == "indicator":
        return data != "times beyond all bounds"  # which the driver cannot read
    return not key_type.is_time or name != "indicator beside"


def taken_by(name: str, data: str) -> list[Any]:
    """The keys that a planner does not refuse."""
    keys = DATA[data][1]
    if name == "list" and "beyond" in data:
        return keys[3:4]
    return [key for key in keys if key is not None or not name.startswith("indicator")]


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("name", "data"), [pair for pair in product(PLANNERS, DATA) if fits(*pair)]
)
def test_each_row_is_read_once(
    connection: Connection, tmp_path: Path, name: str, data: str
) -> None:
    key_type, keys = DATA[data][0], taken_by(name, data)
    make(connection, COLUMNS[key_type], keys, split=name == "physical")
    planner = planner_of(connection, name, key_type, tmp_path)

    plan = planner.plan(connection, SOURCE)

    assert problems(connection, SOURCE, plan) == []
    rounds = len(keys) if name.startswith("indicator") else 1
    seen = Counter(
        row
        for _ in range(max(1, rounds))
        for each in plan.partitions
        for row in ids_of(connection, plan, each)
    )
    assert seen == Counter(range(len(keys)))


PLANNERS_OF_RANGES = (
    Even(parts=4),
    Even(rows=3),
    Even(parts=2, over=3, how=How.SAMPLE),
    Hash(parts=4),
    Hash(rows=2, over=2),
)
whole = settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.mark.parametrize("kind", ["smallint", "integer", "varchar(9)", "char(9)"])
@pytest.mark.parametrize("planner", PLANNERS_OF_RANGES)
def test_types_beside_those(connection: Connection, kind: str, planner: Planner) -> None:
    make_table(connection, kind)
    fill(connection, kind, ["3", "1", None, "2", "1", "7"])
    assert owners(connection, ROWS, planner.plan(connection, ROWS)) == [1] * 6


@given(st.integers(0, 70), st.sets(st.integers(0, 69), max_size=8))
def test_all_rows_but_the_bad_ones_are_done_once_and_in_order(number: int, bad: set[int]) -> None:
    done: list[int] = []
    judged: list[int] = []
    calls = 0

    def do(part: Sequence[int]) -> None:
        nonlocal calls
        calls += 1
        if bad.intersection(part):
            raise LookupError
        done.extend(part)

    process_by_halves(range(number), do, lambda row, _: judged.append(row), lambda _: True)

    assert done == [row for row in range(number) if row not in bad]
    assert judged == sorted(bad.intersection(range(number)))
    assert calls <= 1 + 2 * 7 * len(judged)  # of each bad row, its halves down to itself


def test_what_no_row_is_to_blame_for_comes_out_at_once() -> None:
    calls = []

    def do(part: Sequence[int]) -> None:
        calls.append(part)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        process_by_halves(
            [1, 2, 3], do, lambda *_: None, lambda error: not isinstance(error, ConnectionError)
        )
    assert len(calls) == 1


def test_what_the_judge_raises_comes_out() -> None:
    def do(part: Sequence[int]) -> None:
        if 2 in part:
            raise LookupError

    def judge(row: int, error: Exception) -> None:
        raise KeyError(row) from error

    with pytest.raises(KeyError):
        process_by_halves([1, 2, 3], do, judge, lambda _: True)


def is_odd(key: Any) -> bool:
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
@pytest.mark.parametrize("planner", PLANNERS_OF_RANGES)
@pytest.mark.parametrize("key_type", COLUMNS)
@given(data=st.data())
@whole
def test_every_row_has_one_owner_now_and_later(
    connection: Connection, key_type: KeyType, planner: Planner, data: st.DataObject
) -> None:
    keys = data.draw(some_keys(key_type))
    given_table(connection, key_type, keys)
    plan = planner.plan(connection, ROWS)
    assert_each_row_has_one_owner(connection, plan, len(keys))
    assert owners(connection, ROWS, plan) == [1] * len(keys)
    later = [key for key in data.draw(some_keys(key_type)) if key is not None]
    fill(connection, COLUMNS[key_type], later)
    assert owners(connection, ROWS, plan) == [1] * len(later)


@pytest.mark.parametrize("key_type", COLUMNS)
def test_the_ends_of_keys_need_no_index(connection: Connection, key_type: KeyType) -> None:
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
def test_text_is_split_by_code_points(connection: Connection, planner: Planner) -> None:
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
@pytest.mark.parametrize("by", ["lists", "ranges"])
@pytest.mark.parametrize("key_type", COLUMNS)
@given(data=st.data())
@whole
def test_lists_and_ranges_also_when_they_are_kept(
    connection: Connection, key_type: KeyType, by: str, data: st.DataObject
) -> None:
    keys = data.draw(some_keys(key_type))
    planner: Planner = KeyList({1: [], 2: [], 3: []}, auto_assign=True)
    if by == "lists":
        keys = [key for key in keys if not is_odd(key)]
    given_table(connection, key_type, keys)
    if by == "ranges":
        even = Even(parts=data.draw(st.integers(1, 6))).plan(connection, ROWS)
        bounds = [each.range.low for each in even.partitions if each.range and each.range.low]
        planner = KeyRanges([(span.low, span.high) for span in ranges_between(bounds)])

    plan = planner.plan(connection, ROWS)

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
