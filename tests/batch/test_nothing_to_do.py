"""Sources without rows: whatever they are and however they are split, the job is complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, column, select, table

from tasks_app.batch.planners.even import Even, How
from tasks_app.batch.planners.fixed import Fixed
from tasks_app.batch.planners.flat_file import Extract, FlatFile
from tasks_app.batch.planners.hashed import Hash
from tasks_app.batch.planners.indicator import Indicator
from tasks_app.batch.planners.keys import KeyList, KeyRanges
from tasks_app.batch.planners.physical import Physical
from tasks_app.batch.planners.repository import Repository
from tasks_app.batch.planners.views import Views
from tasks_app.batch.step import Step
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.records import File, Format, Marker, Table
from tasks_app.pool.batch import partitions
from tasks_app.pool.batch.sources.relation import Query
from tests.batch.yard import TODO, Yard

PLANNERS = {
    "none given": None,
    "even": Even(parts=4),
    "even by rows": Even(rows=10),
    "even by size": Even(size="1MB"),
    "sampled": Even(parts=4, how=How.SAMPLE),
    "statistics": Even(parts=4, how=How.STATISTICS),
    "fixed": Fixed(10),
    "ranges": KeyRanges([(None, 10), (10, None)]),
    "list": KeyList({1: [1, 2], 2: [3]}),
    "list of nothing": KeyList({1: []}, auto_assign=True),
    "hash": Hash(parts=4),
    "hash by rows": Hash(rows=10),
    "views": Views(Even(parts=4), "todo_part"),
    "indicator": Indicator(parts=2, marker=Marker("place", "waiting", "done", "error")),
    "indicator by rows": Indicator(rows=10, marker=Marker("place", "waiting", "done", "error")),
    "indicator beside": Indicator(parts=2),
}


def completes(yard: Yard, source: Any, **options: Any) -> list[Any]:
    """Run a job over it and return what its reduce got; the step behind it has run, too."""
    got: list[list[Any]] = []
    behind: list[Any] = []
    job = yard.job(
        Step(
            "step",
            source,
            chunk=yard.note,
            reduce=lambda ctx, parts: got.append(list(parts)),
            max_attempts=1,
            **options,
        ),
        Step("behind", None, chunk=lambda ctx, rows: behind.append(ctx.step)),
    )
    view = yard.run(job)
    assert view.batch.status is BatchStatus.COMPLETED, [step.error for step in view.steps]
    assert yard.calls == []
    assert behind == ["behind"]
    assert all(part.counts == (0, 0, 0, 0) for part in got[0])
    assert len(got) == 1
    return got[0]


@pytest.mark.test_all
@pytest.mark.parametrize("name", PLANNERS)
def test_a_table_without_rows_is_done(yard: Yard, name: str) -> None:
    yard.sql("ANALYZE todo")

    completes(yard, TODO, planner=PLANNERS[name])

    assert yard.sql("SELECT count(*) FROM pg_views WHERE viewname LIKE 'todo_part%'") == 0


@pytest.mark.test_all
@pytest.mark.parametrize("join", ["all", "any", ("quorum", 0.5), "best_effort"])
def test_of_no_partitions_all_are_complete(yard: Yard, tmp_path: Path, join: Any) -> None:
    path = tmp_path / "rows.csv"
    path.touch()

    assert completes(yard, File(str(path)), join=join) == []


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("form", "content", "planner"),
    [
        (Format.CSV, "", None),
        (Format.CSV, "id,name\n", None),
        (Format.CSV, "id,name", FlatFile(rows=10)),
        (Format.CSV, "id,name\n\n\n", FlatFile(parts=4)),
        (Format.JSON_LINES, "", FlatFile(rows=10)),
        (Format.JSON_LINES, "\n", FlatFile(parts=4)),
    ],
)
def test_a_file_without_records_is_done(
    yard: Yard, tmp_path: Path, form: Format, content: str, planner: Any
) -> None:
    path = tmp_path / "rows"
    path.write_text(content)

    completes(yard, File(str(path), form), planner=planner)


@pytest.mark.test_all
def test_an_extract_of_nothing_is_done(yard: Yard, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"

    assert completes(yard, TODO, planner=Extract(parts=4, path=str(path))) == []


@pytest.mark.test_all
def test_a_query_that_finds_nothing_is_done(yard: Yard) -> None:
    yard.rows(10)
    rows = table("todo", column("id"))

    completes(yard, Query(select(rows.c.id).where(rows.c.id > 100), "id"))


@pytest.mark.test_all
@pytest.mark.parametrize("planner", ["indicator", "indicator beside"])
def test_marks_none_of_which_waits_are_done(yard: Yard, planner: str) -> None:
    if planner == "indicator":
        yard.rows(10)  # each has another word than `waiting`

    assert len(completes(yard, TODO, planner=PLANNERS[planner])) == 2


@pytest.mark.test_all
@pytest.mark.parametrize("parts", [0, 2])
@pytest.mark.parametrize("each", [Amount(parts=1), Amount(rows=10)])
def test_a_table_in_parts_or_without_any_is_done(yard: Yard, parts: int, each: Amount) -> None:
    yard.sql("DROP TABLE todo; CREATE TABLE todo (id bigint) PARTITION BY HASH (id)")
    for part in range(parts):
        bound = f"FOR VALUES WITH (MODULUS {parts}, REMAINDER {part})"
        yard.sql(f"CREATE TABLE todo_{part} PARTITION OF todo {bound}")

    found = completes(yard, TODO, planner=Physical(each), page_by="id", aligned=True)

    assert len(found) == parts


@pytest.mark.test_all
def test_ranges_that_people_keep_of_a_table_without_rows_are_done(yard: Yard) -> None:
    with yard.engine.begin() as connection:
        partitions.insert(connection, "kept", planned(connection))

    assert len(completes(yard, TODO, planner=Repository("kept"))) == 1


def planned(connection: Connection) -> Any:
    return Even(parts=1).plan(connection, TODO)


@pytest.mark.test_all
def test_a_commit_at_the_end_of_nothing_is_done(yard: Yard) -> None:
    completes(yard, TODO, planner=Even(parts=1), commit="end")


@pytest.mark.test_all
def test_a_restart_finds_what_came_meanwhile_where_there_was_no_partition(
    yard: Yard, tmp_path: Path
) -> None:
    """Of an empty plan nothing is kept: it is made anew."""
    path = tmp_path / "rows.csv"
    path.write_text("id\n")
    fails = [True]

    def merge(ctx: Any, parts: Any) -> int:
        if fails:
            raise ArithmeticError
        return len(list(parts))

    seen: list[Any] = []
    step = Step(
        "step",
        File(str(path)),
        chunk=lambda ctx, rows: seen.extend(row["id"] for row in rows),
        reduce=merge,
        max_attempts=1,
    )
    job = yard.job(step)
    assert yard.run(job).batch.status is BatchStatus.FAILED
    fails.clear()
    path.write_text("id\n1\n2\n")

    view = yard.run(job)

    assert (view.batch.status, view.steps[0].result, seen) == ("COMPLETED", 1, ["1", "2"])


def test_at_least_one_partition_may_be_asked_for(yard: Yard, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\n")
    step = Step("step", File(str(path)), chunk=yard.note, at_least=1)

    view = yard.run(yard.job(step))

    assert view.batch.status is BatchStatus.FAILED
    assert "There are 0 partitions, but 1 are needed." in str(view.steps[0].error)


def test_a_table_that_is_not_divided_has_no_parts_to_follow(yard: Yard) -> None:
    view = yard.run(yard.job(Step("step", Table("todo"), chunk=yard.note, planner=Physical())))

    assert "todo has no partitions in the database. Split it by Even." in str(view.steps[0].error)
