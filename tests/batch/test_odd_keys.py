"""Keys that Python does not hold as PostgreSQL does: pages go on behind what orders them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.fixed import Fixed
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.planners.indicator import Indicator
from tasks_app.batch.planners.keys import KeyList
from tasks_app.batch.validate import problems
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import Fault
from tasks_app.domain.partition.records import Marker, Table
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
    "numeric of 40 digits": (
        "numeric",
        f"SELECT {DIGITS} + i FROM generate_series(1, 100) i",
    ),
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

    view = yard.run(yard.job(step))

    assert view.batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, number + 1))


@pytest.mark.test_all
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beside", [True, False])
def test_each_row_is_taken_once_and_what_is_left_out_is_marked(
    yard: Yard, odd: Any, kind: str, beside: bool
) -> None:
    number = odd(kind)
    if beside and KINDS[kind][0] in ("date", "timestamp", "timestamptz"):
        pytest.skip("times are not marked beside the table")
    planner = Indicator(parts=1, marker=None if beside else Marker("mark"))

    def chunk(ctx: Any, rows: Sequence[Any]) -> None:
        if any(row["id"] == 2 for row in rows):
            raise ValueError("odd")
        ids(ctx, rows)

    step = yard.step(chunk, source=ODD, planner=planner, commit_every=3, skip_limit=1)

    view = yard.run(yard.job(step))

    assert view.batch.status is BatchStatus.COMPLETED
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
