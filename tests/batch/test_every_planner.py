"""All planners on the kinds of data that split badly: every row is read once, by one partition."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from tasks_app.batch.files.segments import FileReader, file_of
from tasks_app.batch.planners import Planner
from tasks_app.batch.planners.even import Even, How
from tasks_app.batch.planners.fixed import Fixed
from tasks_app.batch.planners.flat_file import Extract
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.planners.indicator import Indicator
from tasks_app.batch.planners.keys import KeyList, KeyRanges
from tasks_app.batch.planners.physical import Physical
from tasks_app.batch.planners.repository import Repository
from tasks_app.batch.planners.views import Views
from tasks_app.batch.validate import problems
from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Marker, Partition, PartitionKind, Plan, Table
from tasks_app.pool.batch import partitions
from tasks_app.pool.batch.sources import buckets, marks
from tests.batch.ownership import COLUMNS, read

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
    """The planner of that name, and what it needs."""
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
    """What one partition reads."""
    if each.kind is PartitionKind.SEGMENT:
        reader = FileReader(file_of(SOURCE, each))
        return [int(reader.decode(record)["id"]) for record in reader.records(each)]
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
