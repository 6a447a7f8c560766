"""The ranges of the database's own partitions, as it tells them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Range
from tasks_app.domain.partition.records import Table
from tasks_app.pool.batch.sources.measure import leaves, physical_ranges
from tasks_app.pool.batch.sources.relation import find

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
def test_what_ranges_cannot_be_aligned_to_is_refused(
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
