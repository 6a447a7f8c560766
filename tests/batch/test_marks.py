"""Rows that are taken by whoever comes first: each by one, and again if he rolls back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.batch.planners.indicator import Indicator
from tasks_app.batch.validate import problems
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Marker, Table
from tasks_app.pool.batch.sources import marks
from tests.pool.interleave import two

MARKER = Marker("state", "N", "D", "E")
Take = Callable[[Connection, int], list[int]]
LETTERS = Table("letters")


@pytest.fixture
def letters(engine: Engine) -> Iterator[Engine]:
    """Ten letters, with marks of both kinds."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE letters (id bigint PRIMARY KEY, note text,"
                " state char(1) NOT NULL DEFAULT 'N')"
            )
        )
        connection.execute(text("INSERT INTO letters SELECT i FROM generate_series(1, 10) i"))
        assert marks.fill(connection, "letters#1", LETTERS) == 10
        assert marks.fill(connection, "letters#1", LETTERS) == 0
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE letters"))


def by_column(connection: Connection, size: int) -> list[int]:
    return [row["id"] for row in marks.take(connection, LETTERS, MARKER, size)]


def beside(connection: Connection, size: int) -> list[int]:
    return [row["id"] for row in marks.take_beside(connection, "letters#1", LETTERS, size, 1)]


def left(connection: Connection, take: Take) -> bool:
    if take is beside:
        return marks.left_beside(connection, "letters#1")
    return marks.left(connection, LETTERS, MARKER)


both = pytest.mark.parametrize("take", [by_column, beside])


@both
def test_two_take_different_rows_and_wait_for_nobody(letters: Engine, take: Take) -> None:
    with two(letters) as (a, b):
        first, second = take(a, 4), take(b, 4)

    assert len(first) == len(second) == 4
    assert not set(first) & set(second)


@both
def test_who_rolls_back_leaves_his_rows_to_others(letters: Engine, take: Take) -> None:
    with two(letters) as (a, b):
        take(a, 8)
        rest = take(b, 10)
        assert left(b, take)  # a may still roll back
        a.rollback()
        again = take(b, 10)

    assert sorted(rest + again) == list(range(1, 11))


@both
def test_what_is_committed_is_taken_once(letters: Engine, take: Take) -> None:
    seen: list[int] = []
    with two(letters) as pair:
        while any(left(each, take) for each in pair):
            for each in pair:
                seen += take(each, 3)
            for each in pair:
                each.commit()

    assert sorted(seen) == list(range(1, 11))


def test_skipped_rows_have_a_mark_of_their_own(letters: Engine) -> None:
    with letters.begin() as connection:
        taken = by_column(connection, 3)
        marks.fail(connection, LETTERS, MARKER, taken[:1])
        other = beside(connection, 3)
        marks.fail_beside(connection, "letters#1", other[:1])

    with letters.begin() as connection:
        states = text("SELECT state, count(*) FROM letters GROUP BY 1 ORDER BY 1")
        assert [tuple(row) for row in connection.execute(states)] == [("D", 2), ("E", 1), ("N", 7)]
        states = text("SELECT state, count(*) FROM task_marker GROUP BY 1 ORDER BY 1")
        found = [tuple(row) for row in connection.execute(states)]
        assert found == [("done", 2), ("error", 1), ("waiting", 7)]
        assert marks.clear(connection, "letters#1") == 10


def test_a_mark_that_is_null_waits(letters: Engine) -> None:
    marker = Marker("note")
    with letters.begin() as connection:
        assert len(marks.take(connection, LETTERS, marker, 99)) == 10
        assert not marks.left(connection, LETTERS, marker)
        done = connection.execute(text("SELECT DISTINCT note FROM letters")).scalar_one()
        assert done == "done"


def test_rows_of_one_key_are_taken_together(connection: Connection) -> None:
    connection.execute(text("CREATE TEMP TABLE pairs (key text, state text)"))
    connection.execute(text("INSERT INTO pairs VALUES ('a'), ('a'), ('b'), ('b'), ('')"))
    pairs = Table("pairs", key="key")
    marks.fill(connection, "p#1", pairs)

    beside = marks.take_beside(connection, "p#1", pairs, 2, 1)
    taken = marks.take(connection, pairs, Marker("state"), 2)
    rest = marks.take(connection, pairs, Marker("state"), 9)

    assert [row["key"] for row in beside] == ["", "a", "a"]
    assert sorted(row["key"] for row in taken + rest) == ["", "a", "a", "b", "b"]


def test_a_row_that_was_deleted_since_is_passed_over(letters: Engine) -> None:
    with letters.begin() as connection:
        connection.execute(text("DELETE FROM letters WHERE id < 3"))

        assert beside(connection, 5) == [3, 4, 10]  # they are taken in the order of text


def test_a_plan_has_as_many_instances_as_asked(letters: Engine) -> None:
    with letters.begin() as connection:
        plan = Indicator(parts=3, marker=MARKER).plan(connection, LETTERS)

        assert str(plan.partitions[0]) == "partition 1 (what it takes first)"
        assert len(plan.partitions) == 3
        assert problems(connection, LETTERS, plan) == []


def test_rows_without_a_key_cannot_be_marked(connection: Connection) -> None:
    connection.execute(text("CREATE TEMP TABLE pairs (key text, state text)"))
    connection.execute(text("INSERT INTO pairs VALUES ('a'), (NULL)"))
    pairs = Table("pairs", key="key")

    (problem,) = problems(connection, pairs, Indicator(parts=2).plan(connection, pairs))

    assert "rows without a key, which cannot be marked" in str(problem)


@pytest.mark.parametrize("source", [Table("moments", key="at")])
def test_times_cannot_be_marked_beside(connection: Connection, source: Any) -> None:
    connection.execute(text("CREATE TEMP TABLE moments (at timestamptz)"))

    with pytest.raises(PlanError, match="use a number or text"):
        marks.fill(connection, "p", source)
