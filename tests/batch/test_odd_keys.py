"""Keys of odd types and odd tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from sqlalchemy import Connection, column, select, table, text

from tasks_app.batch.planners.even import Even, Fixed, Hash, How, Indicator, Physical
from tasks_app.batch.planners.flat_file import Extract
from tasks_app.batch.planners.keys import KeyList, KeyRanges, Views
from tasks_app.batch.validate import problems
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import Fault
from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.records import Marker, Table
from tasks_app.pool.batch.sources.relation import Query
from tests.batch.yard import Yard
from tests.factory import AS_BEFORE, IN_BERLIN

ODD = Table("odd", "k")
DIGITS = "1234567890123456789012345678901234567890"
KINDS = {
    "char(n)": ("char(8)", "SELECT 'a' || repeat(' ', i % 3) || i FROM generate_series(1, 100) i"),
    "char(n) of blanks and tabs": (
        "char(5)",
        r"""SELECT E'x\t' UNION SELECT 'x' UNION SELECT E'x\t\t' UNION SELECT 'x y'
            UNION SELECT '' UNION SELECT E'\t' UNION SELECT E'x\ty'""",
    ),
    "domain over char(n)": ("blanks", "SELECT 'b' || i FROM generate_series(1, 30) i"),
    "domain over a domain": ("twice", "SELECT 'b' || i FROM generate_series(1, 30) i"),
    "numeric of 40 digits": ("numeric", f"SELECT {DIGITS} + i FROM generate_series(1, 100) i"),
    "numeric of 40 digits behind the point": (
        "numeric",
        f"SELECT -0.{DIGITS} - i / 1e42 FROM generate_series(1, 100) i",
    ),
    "instants when the clock is put back": (
        "timestamptz",
        """SELECT '2026-10-25 00:30Z'::timestamptz + i % 2 * interval '1h'
            FROM generate_series(1, 9) i""",
    ),
    "numeric that is no number": (
        "numeric",
        "VALUES ('NaN'::numeric), ('-Infinity'), ('Infinity'), (0), (1e100), (-1e-100)",
    ),
    "days beyond all bounds": (
        "date",
        """VALUES ('infinity'::date), ('-infinity'), ('0044-03-15 BC'), ('4714-11-24 BC'),
        ('5874897-12-31'), ('10000-01-01'), ('2026-11-23')""",
    ),
    "times beyond all bounds": (
        "timestamp",
        """VALUES ('infinity'::timestamp), ('-infinity'), ('0044-03-15 12:00:00.000001 BC'),
        ('294276-12-31 23:59:59.999999'), ('4714-11-24 BC'), ('2026-11-23')""",
    ),
    "instants beyond all bounds": (
        "timestamptz",
        """VALUES ('infinity'::timestamptz), ('-infinity'), ('0044-03-15 12:00:00.000001Z BC'),
        ('294276-12-31 23:59:59.999999Z'), ('4714-11-24 00:00Z BC'), ('2026-11-23 12:00Z')""",
    ),
}


@pytest.fixture
def odd(yard: Yard) -> Iterator[Callable[[str], int]]:
    """Makes the table of odd keys, without a primary key; returns how many rows it has."""
    yard.sql("DROP TABLE IF EXISTS odd")
    yard.sql("DROP DOMAIN IF EXISTS twice, blanks")
    yard.sql("CREATE DOMAIN blanks AS char(6)")
    yard.sql("CREATE DOMAIN twice AS blanks")

    def make(kind: str) -> int:
        sql_type, keys = KINDS[kind]
        columns = f"id bigint GENERATED ALWAYS AS IDENTITY, k {sql_type}, mark text"
        yard.sql(f"CREATE TABLE odd ({columns})")
        yard.sql(f"INSERT INTO odd (k) {keys}")
        return yard.sql("SELECT count(*) FROM odd")

    yield make
    yard.sql("DROP TABLE IF EXISTS odd")
    yard.sql("DROP DOMAIN twice, blanks")


def ids(ctx: Any, rows: Sequence[Any]) -> None:
    """A chunk handler: each row is done."""
    done = [row["id"] if isinstance(row, dict) else row.id for row in rows]
    ctx.connection.execute(
        text("INSERT INTO done SELECT i, 1 FROM unnest(CAST(:ids AS bigint[])) i"), {"ids": done}
    )


@pytest.mark.test_all
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [1, 3])
def test_each_row_is_done_once(yard: Yard, odd: Any, kind: str, parts: int) -> None:
    number = odd(kind)
    page_by = "id" if "clock" in kind else None  # its keys are not unique
    step = yard.step(ids, source=ODD, planner=Even(parts=parts), commit_every=2, page_by=page_by)
    yard.completes(step)
    assert yard.done == list(range(1, number + 1))


@pytest.mark.test_all
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beside", [True, False])
def test_each_row_is_taken_once_or_marked(yard: Yard, odd: Any, kind: str, beside: bool) -> None:
    number = odd(kind)
    if beside and KINDS[kind][0] in ("date", "timestamp", "timestamptz"):
        pytest.skip("times are not marked beside the table")
    planner = Indicator(parts=1, marker=None if beside else Marker("mark"))

    def chunk(ctx: Any, rows: Sequence[Any]) -> None:
        if any(row["id"] == 2 for row in rows):
            raise ValueError("odd")
        ids(ctx, rows)

    step = yard.step(chunk, source=ODD, planner=planner, commit_every=3, skip_limit=1)

    view = yard.completes(step)

    assert yard.done == [i for i in range(1, number + 1) if i != 2]
    assert view.tallies["step"].counts[:3] == (number, number - 1, 1)
    if not beside:
        assert yard.sql("SELECT id FROM odd WHERE mark = 'error'") == 2


@pytest.mark.test_all
def test_a_row_that_is_left_out_is_named_by_its_whole_key(yard: Yard, odd: Any) -> None:
    odd("numeric of 40 digits")

    def chunk(ctx: Any, rows: Sequence[Any]) -> None:
        if any(row.id == 7 for row in rows):
            raise ValueError("odd")

    yard.run(yard.job(yard.step(chunk, source=ODD, planner=Even(parts=1), skip_limit=1)))
    assert yard.sql("SELECT key FROM task_batch_skip") == str(int(DIGITS) + 7)


@pytest.mark.test_all
def test_a_list_has_both_instants_that_a_clock_shows_as_one(yard: Yard, odd: Any) -> None:
    """When it is put back: 00:30Z and 01:30Z are both half past two in Berlin."""
    number = odd("instants when the clock is put back")
    yard.sql(IN_BERLIN)
    yard.engine.dispose()
    try:
        step = yard.step(
            ids,
            source=ODD,
            planner=KeyList({1: [], 2: []}, auto_assign=True),
            page_by="id",
            commit_every=2,
        )
        view = yard.run(yard.job(step))
    finally:
        yard.sql(AS_BEFORE)
        yard.engine.dispose()

    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, number + 1))


def numbers(connection: Connection, *keys: str) -> None:
    connection.execute(text("CREATE TEMP TABLE odd (id bigserial PRIMARY KEY, k numeric)"))
    connection.execute(
        text("INSERT INTO odd (k) SELECT CAST(unnest(CAST(:keys AS text[])) AS numeric)"),
        {"keys": list(keys)},
    )


def test_ranges_of_one_width_have_all_digits(connection: Connection) -> None:
    numbers(connection, f"{DIGITS}.05", f"{DIGITS}.35")
    plan = Fixed(Decimal("0.1")).plan(connection, ODD)
    lows = [each.range.low for each in plan.partitions if each.range]
    assert lows == [None, *(Decimal(f"{DIGITS}.{tenth}") for tenth in (1, 2, 3))]
    assert problems(connection, ODD, plan) == []


def test_too_many_ranges_of_any_number_are_refused(connection: Connection) -> None:
    numbers(connection, "1e130000", "-1e130000")
    with pytest.raises(PlanError, match="too many ranges of 1, more than 10000"):
        Fixed(1).plan(connection, ODD)


def test_a_bound_that_no_index_holds_is_refused_at_the_plan(connection: Connection) -> None:
    connection.execute(text("CREATE TEMP TABLE odd (id bigint, k text)"))
    connection.execute(text("INSERT INTO odd VALUES (1, repeat('x', 3000)), (2, 'y'), (3, 'a')"))
    plan = Even(parts=3).plan(connection, ODD)
    assert {each.kind for each in problems(connection, ODD, plan)} == {Fault.TOO_LONG}
    assert problems(connection, ODD, Hash(parts=3).plan(connection, ODD)) == []


NAME = "odd_rows"
MARKER = Marker("mark")


def words(*known: str) -> st.SearchStrategy[str]:
    return st.sampled_from(known)


def whole(bits: int) -> st.SearchStrategy[str]:
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
DIGITS_OF_ODD_TABLES = st.integers(-(10**60), 10**60).map(str)
NUMBERS = (
    st.decimals(-1000, 1000, places=2).map(str)
    | DIGITS_OF_ODD_TABLES
    | st.tuples(DIGITS_OF_ODD_TABLES, st.integers(-70, 70)).map("{0[0]}e{0[1]}".format)
    | words("0", "1.0", "1.00", "-0.0", "1e130000", "-1e130000", "1e-16000", "1e16", "0.1")
)
KINDS_OF_ODD_TABLES: dict[str, st.SearchStrategy[str]] = {
    "smallint": whole(16),
    "integer": whole(32),
    "bigint": whole(64),
    "numeric": NUMBERS | words("NaN", "Infinity", "-Infinity"),
    "numeric(80,20)": DIGITS_OF_ODD_TABLES.map(lambda each: f"{each[:50]}.{each[-20:].strip('-')}"),
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
        if self.reads == "table":
            return Table(NAME, "k")
        found = select(column("id"), column("k"), column("mark")).select_from(table(NAME))
        return Query(found.where(column("id") > 0), "k")

    @property
    def has_order(self) -> bool:
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
    kind = draw(st.sampled_from(list(KINDS_OF_ODD_TABLES)))
    few = draw(st.lists(KINDS_OF_ODD_TABLES[kind], min_size=1, max_size=4))
    planner = draw(planners(folder))
    primary = draw(st.sampled_from(["id", "id", "id, k", "k, id", ""]))
    nulls = st.nothing() if "k" in primary or isinstance(planner, Indicator) else st.none()
    keys = draw(st.lists(KINDS_OF_ODD_TABLES[kind] | st.sampled_from(few) | nulls, max_size=14))
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
