"""Tables of any key that there is, as people have them; and all ways to split them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import Connection, column, select, table, text

from tasks_app.batch.planners.even import Even, How
from tasks_app.batch.planners.fixed import Fixed
from tasks_app.batch.planners.flat_file import Extract
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.planners.indicator import Indicator
from tasks_app.batch.planners.keys import KeyList, KeyRanges
from tasks_app.batch.planners.physical import Physical
from tasks_app.batch.planners.views import Views
from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.records import Marker, Table
from tasks_app.pool.batch.sources.relation import Query

NAME = "odd_rows"
MARKER = Marker("mark")


def words(*known: str) -> st.SearchStrategy[str]:
    """Some of these."""
    return st.sampled_from(known)


def whole(bits: int) -> st.SearchStrategy[str]:
    """Integers of so many bits."""
    most = 2 ** (bits - 1)
    return (st.integers(-most, most - 1) | st.sampled_from([-most, -1, 0, 1, most - 1])).map(str)


LETTERS = st.text("aAbäß \t\x01%':\\\"\U0001f40d", max_size=5) | words(
    "", "a", "a ", "A", "10", "9"
)
YEARS = words(*("infinity", "-infinity", "0044-03-15 BC", "4714-11-24 BC", "0001-01-01"))
DAYS = st.dates().map(str) | YEARS | words("9999-12-31", "10000-01-01", "5874897-12-31")
TIMES = (
    st.datetimes().map(str)
    | YEARS
    | words("294276-12-31 23:59:59.999999", "0044-03-15 12:34:56.000001 BC", "9999-12-31 23:59:59")
)
CLOCK = st.integers(0, 18).map("2026-10-25 {:02}:30:00".format) | words("2026-03-29 01:30")
DIGITS = st.integers(-(10**60), 10**60).map(str)
NUMBERS = (
    st.decimals(-1000, 1000, places=2).map(str)
    | DIGITS
    | st.tuples(DIGITS, st.integers(-70, 70)).map("{0[0]}e{0[1]}".format)
    | words("0", "1.0", "1.00", "-0.0", "1e130000", "-1e130000", "1e-16000", "1e16", "0.1")
)
KINDS: dict[str, st.SearchStrategy[str]] = {
    "smallint": whole(16),
    "integer": whole(32),
    "bigint": whole(64),
    "numeric": NUMBERS | words("NaN", "Infinity", "-Infinity"),
    "numeric(80,20)": DIGITS.map(lambda each: f"{each[:50]}.{each[-20:].strip('-')}"),
    "text": LETTERS | words("x" * 300, "x" * 3_000),
    "character varying(9)": LETTERS,
    "char(5)": LETTERS,
    "char(1)": words("", "a", "\t", "ä"),
    'text COLLATE "C"': LETTERS,
    "uuid": st.uuids().map(str) | words("0" * 32, "f" * 32),
    "date": DAYS,
    "timestamp": TIMES | CLOCK,
    "timestamp(0)": CLOCK | words("infinity"),
    "timestamptz": TIMES.map(lambda each: each if "inf" in each else each + "+00") | CLOCK,
}
REFUSED = {
    "real": words("0.1", "0.2", "NaN"),
    "double precision": words("0.1", "1e300"),
    "boolean": words("true", "false"),
    "interval": words("1 day", "24 hours"),
    "time": words("12:00", "24:00"),
    "timetz": words("12:00+02", "24:00+00"),
    "inet": words("10.0.0.1", "::1"),
    "bytea": words("a", "b"),
    "jsonb": words("1", "{}"),
    "money": words("1.10", "2"),
    "oid": words("1", "2"),
    "name": words("a", "b"),
    '"char"': words("a", "b"),
    "bit(3)": words("101", "000"),
    "integer[]": words("{1}", "{}"),
    "int4range": words("[1,2)", "empty"),
}


@dataclass
class Odd:
    """A table, what is in it, and how it is split."""

    kind: str
    keys: list[str | None]
    domain: int = 0
    """So many domains lie over the type."""
    primary: str = ""
    is_split: bool = False
    """It has partitions in the database."""
    reads: str = "table"
    planner: Any = None
    page_by: str | None = None
    zone: str = "UTC"
    setting: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Any:
        """What the step reads."""
        if self.reads == "table":
            return Table(NAME, "k")
        found = select(column("id"), column("k"), column("mark")).select_from(table(NAME))
        return Query(found.where(column("id") > 0), "k")

    @property
    def has_order(self) -> bool:
        """Whether rows are told apart."""
        return bool(self.page_by) or (self.reads == "table" and "id" in self.primary)

    def make(self, connection: Connection) -> None:
        """Make it; the caller rolls back."""
        run = connection.exec_driver_sql
        run(f"SET LOCAL TimeZone = '{self.zone}'")
        sql_type = self.kind
        for number in range(self.domain):
            run(f"CREATE DOMAIN pg_temp.over_{number} AS {sql_type}")
            sql_type = f"pg_temp.over_{number}"
        columns = f"id bigint NOT NULL, k {sql_type}, mark text"
        primary = f", PRIMARY KEY ({self.primary})" if self.primary else ""
        parted = " PARTITION BY HASH (id)" if self.is_split else ""
        run(f"CREATE TEMP TABLE {NAME} ({columns}{primary}){parted}")
        for part in range(2 if self.is_split else 0):
            bound = f"FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
            run(f"CREATE TEMP TABLE part_{part} PARTITION OF {NAME} {bound}")
        for number, key in enumerate(self.keys, 1):
            values = {"id": number, "key": key}
            cast = f"CAST(CAST(:key AS text) AS {sql_type.partition(' COLLATE')[0]})"
            insert = f"INSERT INTO {NAME} (id, k) VALUES (:id, {cast})"
            connection.execute(text(insert), values)
        run(f"ANALYZE {NAME}")


WIDTHS = [1, 2**60, Decimal("97.3"), Decimal("1e129990"), timedelta(days=400_000), timedelta(1)]


def planners(folder: Path) -> st.SearchStrategy[Any]:
    """All of them."""
    few = st.integers(1, 4)
    return st.one_of(
        few.map(lambda n: Even(parts=n)),
        few.map(lambda n: Even(rows=n, over=2)),
        few.map(lambda n: Even(parts=n, how=How.SAMPLE)),
        few.map(lambda n: Even(parts=n, how=How.STATISTICS)),
        few.map(lambda n: Hash(parts=n)),
        few.map(lambda n: KeyList({each: [] for each in range(n)}, auto_assign=True)),
        st.just(KeyRanges([(None, None)])),
        st.sampled_from(WIDTHS).map(Fixed),
        few.map(lambda n: Views(Even(parts=n), "odd_part")),
        few.map(lambda n: Physical(Amount(parts=n))),
        few.map(lambda n: Indicator(parts=n, marker=MARKER)),
        few.map(lambda n: Indicator(parts=n)),
        few.map(lambda n: Extract(parts=n, path=str(folder / "odd.csv"))),
    )


@st.composite
def odd_tables(draw: st.DrawFn, folder: Path) -> Odd:
    """One of them."""
    kind = draw(st.sampled_from(list(KINDS)))
    few = draw(st.lists(KINDS[kind], min_size=1, max_size=4))
    planner = draw(planners(folder))
    primary = draw(st.sampled_from(["id", "id", "id, k", "k, id", ""]))
    nulls = st.nothing() if "k" in primary or isinstance(planner, Indicator) else st.none()
    keys = draw(st.lists(KINDS[kind] | st.sampled_from(few) | nulls, max_size=14))
    of_table = isinstance(planner, Indicator | Physical)
    return Odd(
        kind,
        keys,
        domain=draw(st.integers(0, 2)),
        primary=primary,
        is_split=isinstance(planner, Physical) or (draw(st.booleans()) and "id" in primary),
        reads="table" if of_table else draw(st.sampled_from(["table", "table", "query"])),
        planner=planner,
        page_by=draw(st.sampled_from([None, None, "id"])),
        zone=draw(st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata"])),
    )
