"""Tables of any keys, and who owns each of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import Connection, Integer, case, column, select, text

from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Partition, Plan, Table
from tasks_app.pool.batch.sources.predicate import predicate
from tasks_app.pool.batch.sources.relation import Source, find, source_of

ROWS = Table("batch_rows", key="key")
COLUMNS = {
    KeyType.INTEGER: "bigint",
    KeyType.NUMERIC: "numeric",
    KeyType.TEXT: "text",
    KeyType.UUID: "uuid",
    KeyType.DATE: "date",
    KeyType.TIMESTAMP: "timestamp",
    KeyType.TIMESTAMPTZ: "timestamptz",
}
LETTERS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4
) | st.sampled_from(["", "a", "A", "ä", "Z", "z", " ", "a ", "é", "\U0001f40d", "0", "10", "9"])
INSTANTS = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 30))  # noqa: DTZ001
KEYS: dict[KeyType, st.SearchStrategy[Any]] = {
    KeyType.INTEGER: st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5),
    KeyType.NUMERIC: st.decimals(-1000, 1000, places=2)
    | st.sampled_from(
        [Decimal(word) for word in ("0", "1.0", "1.00", "NaN", "Infinity", "-Infinity")]
    ),
    KeyType.TEXT: LETTERS,
    KeyType.UUID: st.uuids(),
    KeyType.DATE: (st.dates() | st.sampled_from([date.min, date.max])).map(str)
    | st.sampled_from(["infinity", "-infinity", "0044-03-15 BC"]),
    KeyType.TIMESTAMP: st.datetimes().map(str) | st.sampled_from(["infinity", "-infinity"]),
    KeyType.TIMESTAMPTZ: INSTANTS.map("{}Z".format) | st.sampled_from(["infinity", "-infinity"]),
}
"""Of each type what is odd about it, and a few keys that come again and again."""


SOME: dict[KeyType, list[Any]] = {
    KeyType.INTEGER: [-7, 0, 0, 2**40],
    KeyType.NUMERIC: [Decimal("-0.5"), 0, Decimal("1.0"), Decimal("1.00")],
    KeyType.TEXT: ["", "100%", "it's", '"; DROP TABLE x; --', ":name", "\\", "ß\U0001f40d"],
    KeyType.UUID: ["00000000-0000-4000-8000-000000000000", "f" * 32],
    KeyType.DATE: [date(1, 2, 3), "infinity", "2026-05-01"],
    KeyType.TIMESTAMP: ["2026-05-01 12:00", "-infinity"],
    KeyType.TIMESTAMPTZ: ["2026-05-01 12:00+02", "infinity"],
}


@st.composite
def some_keys(draw: st.DrawFn, key_type: KeyType) -> list[Any]:
    """None, one or many keys, spread or skewed, with and without NULLs."""
    few = draw(st.lists(KEYS[key_type], min_size=1, max_size=5))
    key = KEYS[key_type] | st.sampled_from(few) | st.none()
    return draw(st.lists(key, max_size=40))


def make_table(connection: Connection, kind: str, name: str = ROWS.name) -> None:
    """A table whose key is of a type of the database."""
    connection.execute(
        text(
            f"CREATE TEMP TABLE IF NOT EXISTS {name}"
            f" (id bigint GENERATED ALWAYS AS IDENTITY, key {kind})"
        )
    )


def fill(connection: Connection, kind: str, keys: Iterable[Any], name: str = ROWS.name) -> None:
    """Give the table these rows and no others."""
    connection.execute(text(f"DELETE FROM {name}"))
    rows = [{"key": key} for key in keys]
    if rows:
        connection.execute(text(f"INSERT INTO {name} (key) VALUES (CAST(:key AS {kind}))"), rows)


def owners(connection: Connection, source: Source, plan: Plan) -> list[int]:
    """How many partitions own each row: each is to have one."""
    relation = find(connection, source)
    own = [
        case((predicate(each, relation.key, plan.key_type), 1), else_=0) for each in plan.partitions
    ]
    number = sum(own[1:], own[0])
    return list(connection.execute(select(number).select_from(relation.rows_of)).scalars())


def read(connection: Connection, source: Source, plan: Plan, partition: Partition) -> Sequence[int]:
    """The ids of a partition's rows."""
    source = source_of(source, partition)
    relation = find(connection, source)
    own = predicate(partition, relation.key, plan.key_type)
    query = select(column("id", Integer)).select_from(relation.rows_of).where(own)
    return connection.execute(query.order_by(column("id"))).scalars().all()
