"""Tables, queries and views as sources; marks where pages begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, Connection, Engine, column, select, table, text

from tasks_app import File, Query, Step, Table
from tasks_app.batch.planners import Planner
from tasks_app.batch.planners.even import Even, Hash, Indicator, Physical
from tasks_app.batch.planners.flat_file import Extract, FlatFile
from tasks_app.batch.planners.keys import KeyList, KeyRanges, Views
from tasks_app.batch.validate import problems
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.check import Fault
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Format, Marker, Plan
from tasks_app.pool.batch import partition_progress
from tasks_app.pool.batch.sources import buckets, marks
from tasks_app.pool.batch.sources.predicate import drop_views
from tests.batch.yard import COLUMNS, DONE, ROWS, SOME, TODO, Yard, fill, make_table, read
from tests.pool.interleave import two

PLACES = {n: [f"place {n}", f"place {n + 3}"] for n in (1, 2, 3)} | {4: ["place 0", None]}


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("source", "planner"),
    [
        (Table("todo"), Even(3)),
        (Table("todo"), Hash(3)),
        (Table("todo", "place"), Even(3)),
        (Table("todo", "place"), Hash(3)),
        (Table("todo", "place"), KeyList(PLACES)),
        (Table("todo"), Views(Even(3), "todo_part")),
        (Table("todo", "place"), Views(Even(3), "todo_part")),
        (Table("todo"), Indicator(3)),
        (Table("todo"), Indicator(3, marker=Marker("mark"))),
        (Query(select(column("id"), column("amount")).select_from(table("todo")), "id"), Even(3)),
        (Table("todo"), None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_row_once_whatever_splits_it(yard: Yard, source: Any, planner: Any) -> None:
    """Keys of many rows and rows without one are paged by the primary key, too."""
    yard.rows(200)
    yard.sql("ALTER TABLE todo ADD COLUMN mark text")
    yard.sql("UPDATE todo SET place = NULL WHERE id % 10 = 0")

    def chunk(ctx: Any, rows: Any) -> None:
        ids = [row["id"] if isinstance(row, dict) else row.id for row in rows]
        ctx.connection.execute(text(DONE), {"ids": ids, "run": ctx.partition_no})

    step = Step("step", source, planner=planner, chunk=chunk, commit_every=7)
    view = yard.completes(step)

    assert yard.done == list(range(1, 201))
    assert view.tallies["step"].counts.read == 200
    assert yard.sql("SELECT count(*) FROM task_marker") == 0
    assert yard.sql("SELECT count(*) FROM pg_views WHERE viewname LIKE 'todo_part%'") == 0


@pytest.mark.test_all
def test_lines_of_a_file_and_those_that_cannot_be_read(yard: Yard, folder: Path) -> None:
    lines = [f'{i},"name, of\n{i}"' for i in range(1, 101)]
    lines[49] = "50"
    (folder / "people.csv").write_text("id,name\n" + "\n".join(lines) + "\n")

    def chunk(ctx: Any, rows: Any) -> None:
        ids = [int(row["id"]) for row in rows]
        assert all(row["name"] == f"name, of\n{row['id']}" for row in rows)
        ctx.connection.execute(text(DONE), {"ids": ids, "run": ctx.partition_no})

    source = File(str(folder / "people.csv"))
    step = Step("s", source, planner=FlatFile(4), chunk=chunk, commit_every=10, skip_limit=1)
    view = yard.completes(step)

    assert yard.done == [i for i in range(1, 101) if i != 50]
    assert len(yard.parts(view.batch.id)) == 4
    with yard.engine.connect() as connection:
        (left_out,) = partition_progress.find_skips(connection, view.batch.id)
    assert left_out.key.startswith("byte ")
    assert left_out.reason.startswith("ValueError: 1 fields")


@pytest.mark.test_all
def test_json_lines_go_on_behind_the_last_chunk(yard: Yard, folder: Path) -> None:
    (folder / "people.jsonl").write_text("".join(f'{{"id": {i}}}\n' for i in range(1, 51)))
    seen: list[int] = []
    broken = [True]

    def chunk(ctx: Any, rows: Any) -> None:
        ids = [row["id"] for row in rows]
        seen.extend(ids)
        if broken and 33 in ids:
            broken.clear()
            raise SystemExit
        ctx.connection.execute(text(DONE), {"ids": ids, "run": ctx.run})

    source = File(str(folder / "people.jsonl"), Format.JSON_LINES)
    step = Step("s", source, planner=FlatFile(1), chunk=chunk, commit_every=10, retry="0s")
    yard.completes(step)

    assert yard.done == list(range(1, 51))
    assert [i for i in set(seen) if seen.count(i) > 1] == list(range(31, 41))


def test_a_file_that_was_changed_since_it_was_split_is_not_read(yard: Yard, folder: Path) -> None:
    path = folder / "people.jsonl"
    path.write_text("".join(f'{{"id": {i}}}\n' for i in range(10, 60)))
    step = Step(
        "s",
        File(str(path), Format.JSON_LINES),
        planner=FlatFile(2),
        chunk=lambda _ctx, _rows: None,
        max_attempts=1,
    )
    begun = yard.start(yard.job(step))
    yard.plan()
    path.write_text(path.read_text().replace("59", "99"))

    yard.bench.drain()

    assert yard.view(begun.batch_id).batch.status is BatchStatus.FAILED
    assert "was changed since" in str(yard.parts(begun.batch_id)[1].error)


def test_a_table_is_extracted_and_read_from_the_file(yard: Yard, folder: Path) -> None:
    yard.rows(100)
    step = Step(
        "s",
        Table("todo"),
        planner=Extract(3, path=str(folder / "todo.csv")),
        chunk=lambda ctx, rows: (
            ctx.connection.execute(text(DONE), {"ids": [int(row["id"]) for row in rows], "run": 1})
            and None
        ),
    )

    yard.completes(step)

    assert yard.done == list(range(1, 101))
    assert (folder / "todo.csv.manifest.json").exists()


def test_marked_rows_that_fail_are_marked_so(yard: Yard) -> None:
    yard.rows(20)
    yard.sql("ALTER TABLE todo ADD COLUMN mark text")

    def chunk(ctx: Any, rows: Any) -> None:
        if any(row["id"] == 13 for row in rows):
            raise ValueError

    planner = Indicator(2, marker=Marker("mark"))
    yard.completes(Step("s", Table("todo"), planner=planner, chunk=chunk, skip_limit=1))
    assert yard.sql("SELECT string_agg(DISTINCT mark, ' ' ORDER BY mark) FROM todo") == "done error"
    assert yard.sql("SELECT id FROM todo WHERE mark = 'error'") == 13


@pytest.mark.test_all
@pytest.mark.parametrize("marker", [Marker("mark"), None], ids=["in the table", "beside"])
def test_rows_that_others_have_in_hand_are_waited_for(yard: Yard, marker: Marker | None) -> None:
    """They may roll back, as here: then the rows are done by who waited."""
    yard.rows(20)
    yard.sql("ALTER TABLE todo ADD COLUMN mark text")
    chunk = lambda ctx, rows: ctx.connection.execute(  # noqa: E731
        text(DONE), {"ids": [row["id"] for row in rows], "run": 1}
    )
    step = Step("s", TODO, planner=Indicator(1, marker=marker), chunk=chunk, commit_every=5)
    begun = yard.start(yard.job(step))
    yard.plan()

    with yard.engine.connect() as other:
        other.execute(text("SET LOCAL idle_in_transaction_session_timeout = '20s'"))
        if marker is None:
            taken = marks.take_beside(other, f"job:s#{begun.batch_id}", TODO, 5, 2)
        else:
            taken = marks.take(other, TODO, marker, 5)
        yard.bench.drain()
        assert len(taken) == 5
        assert len(yard.done) == 15
        assert yard.view(begun.batch_id).batch.status is BatchStatus.RUNNING
        other.rollback()
    yard.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    yard.bench.drain()

    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 21))


@pytest.mark.parametrize(
    ("change", "page_by"),
    [
        ("ALTER TABLE todo DROP CONSTRAINT todo_pkey", None),
        ("ALTER TABLE todo ADD COLUMN other int DEFAULT 1", "other"),
        ("ALTER TABLE todo ADD COLUMN other int", "other"),
    ],
    ids=["no primary key", "not unique", "null"],
)
def test_rows_that_nothing_tells_apart_are_refused_before_one_is_left_out(
    yard: Yard, change: str, page_by: str | None
) -> None:
    yard.rows(100)
    yard.sql(change)
    step = yard.step(
        source=Table("todo", "place"), planner=Even(2), page_by=page_by, max_attempts=1
    )
    view = yard.fails(step)
    assert len(yard.done) == len(set(yard.done)) < 100
    errors = [each.error for each in (*view.steps, *yard.parts(view.batch.id))]
    assert "so pages would miss some. Give the step page_by" in str(errors)


def lines(path: Path, ids: range) -> None:
    path.write_text("".join(f'{{"id": {i}}}\n' for i in ids))


@pytest.mark.test_all
def test_a_file_that_was_changed_between_two_runs_is_not_read_on(yard: Yard, folder: Path) -> None:
    """Where the first run stopped is a place in the file as it was."""
    path = folder / "people.jsonl"
    lines(path, range(10, 60))
    mended: list[bool] = []

    def chunk(ctx: Any, rows: Any) -> None:
        if not mended and rows[0]["id"] >= 30:
            raise ValueError
        ctx.connection.execute(text(DONE), {"ids": [row["id"] for row in rows], "run": ctx.run})

    options: Any = {"planner": FlatFile(1), "commit_every": 10, "max_attempts": 1}
    job = yard.job(Step("s", File(str(path), Format.JSON_LINES), chunk=chunk, **options))
    assert yard.run(job).batch.status is BatchStatus.FAILED
    mended.append(True)
    lines(path, range(10, 40))

    view = yard.run(job)
    assert view.batch.status is BatchStatus.FAILED
    assert "was changed since" in str(yard.parts(view.batch.id)[0].error)
    lines(path, range(10, 60))

    assert yard.run(job).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(10, 60))


def test_a_file_that_is_replaced_while_it_is_read_is_not_read_on(yard: Yard, folder: Path) -> None:
    path = folder / "people.jsonl"
    lines(path, range(10, 60))

    def chunk(ctx: Any, rows: Any) -> None:
        lines(folder / "new.jsonl", range(60, 110))
        (folder / "new.jsonl").replace(path)

    options: Any = {"planner": FlatFile(1), "commit_every": 10, "max_attempts": 1}
    step = Step("s", File(str(path), Format.JSON_LINES), chunk=chunk, **options)
    view = yard.fails(step)
    assert view.tallies["s"].counts.read == 10
    assert "was changed since" in str(yard.parts(view.batch.id)[0].error)


def test_marked_rows_and_one_commit_at_the_end_are_refused(yard: Yard) -> None:
    """Two takers would wait for each other's rows, and roll back, for ever."""
    yard.rows(10)
    step = Step("s", TODO, planner=Indicator(2), chunk=yard.note, commit="end")
    view = yard.fails(step)
    assert 'Remove commit="end"' in str(view.steps[0].error)
    assert yard.calls == []


@pytest.mark.test_all
def test_rows_without_what_they_are_read_by_are_refused_at_the_plan(yard: Yard) -> None:
    """A page that ends before them would be the last that could have them."""
    yard.rows(3)
    yard.sql("ALTER TABLE todo ADD COLUMN other int UNIQUE")
    yard.sql("UPDATE todo SET other = id, place = 'here' WHERE id < 3")
    yard.sql("UPDATE todo SET place = 'here'")
    step = yard.step(
        source=Table("todo", "place"), planner=Even(1), page_by="other", commit_every=1
    )
    view = yard.fails(step)
    assert "have the same other, or none" in str(view.steps[0].error)
    assert yard.parts(view.batch.id) == []


@pytest.mark.test_all
def test_rows_are_told_apart_by_a_primary_key_of_several_columns(yard: Yard) -> None:
    yard.rows(40)
    yard.sql("ALTER TABLE todo DROP CONSTRAINT todo_pkey, ADD PRIMARY KEY (amount, id)")
    for key in ("place", "amount", "id"):
        step = yard.step(source=Table("todo", key), planner=Even(2), commit_every=3)
        view = yard.run(yard.job(step, name=f"by_{key}"))
        assert view.batch.status is BatchStatus.COMPLETED
        assert yard.done == list(range(1, 41))
        yard.sql("DELETE FROM done")
        yard.deploy()


@pytest.mark.test_all
@pytest.mark.parametrize("key", ["place", "amount", "id"])
def test_a_row_is_named_by_all_that_is_unique_of_it(yard: Yard, key: str) -> None:
    yard.rows(9)
    yard.sql("UPDATE todo SET amount = 77 WHERE id = 5")
    yard.sql("ALTER TABLE todo DROP CONSTRAINT todo_pkey, ADD PRIMARY KEY (amount, id)")

    def chunk(ctx: Any, rows: Any) -> None:
        if any(row.id == 5 for row in rows):
            raise ValueError

    step = yard.step(chunk, source=Table("todo", key), planner=Even(1), skip_limit=1)
    yard.run(yard.job(step))
    name = yard.sql("SELECT key FROM task_batch_skip")
    assert name == ("5, 77" if key == "id" else "77, 5")


MOVES = {
    "another type": (
        "ALTER TABLE todo DROP amount, ADD amount bigint NOT NULL DEFAULT 100",
        "int8",
    ),
    "another place": ("ALTER TABLE todo DROP amount, ADD amount int NOT NULL DEFAULT 100", None),
    "one more": ("ALTER TABLE todo ADD more int", None),
    "another key": ("ALTER TABLE todo ALTER id TYPE numeric", "numeric"),
}


@pytest.mark.parametrize("move", MOVES)
def test_columns_that_move_between_two_chunks_keep_their_names(yard: Yard, move: str) -> None:
    """A row has each value under its name, or the page is refused and says why."""
    yard.rows(50)
    yard.sql("UPDATE todo SET amount = 100, place = 'here'")
    statement, refused = MOVES[move]
    seen: list[Any] = []

    def chunk(ctx: Any, rows: Any) -> None:
        if not seen:
            ctx.connection.execute(text(statement))
        seen.extend((row.id, row.place, row.amount) for row in rows)

    view = yard.run(yard.job(yard.step(chunk, cuts=(), max_attempts=1)))

    error = str(yard.parts(view.batch.id)[0].error)
    assert seen == [(i, "here", 100) for i in range(1, len(seen) + 1)]
    if refused:
        assert refused in error
        assert len(seen) == 10
        again = yard.run(yard.job(yard.step(chunk, cuts=(), max_attempts=1)))
        error = str(yard.parts(again.batch.id)[0].error)
        assert ("was of type" in error) is (move == "another key")
    assert len(seen) == (10 if move == "another key" else 50)


def ids(connection: Connection, plan: Plan, source: Table = ROWS) -> list[int]:
    return sorted(i for each in plan.partitions for i in read(connection, source, plan, each))


@pytest.mark.parametrize("key_type", COLUMNS)
@pytest.mark.parametrize(
    "planner", [Even(parts=3), Hash(parts=3), KeyList({1: [], 2: []}, auto_assign=True)]
)
def test_views_show_all_rows(connection: Connection, key_type: KeyType, planner: Planner) -> None:
    make_table(connection, COLUMNS[key_type])
    keys = [*SOME[key_type], None]
    if isinstance(planner, KeyList):
        keys = [key for key in keys if "infinity" not in str(key)]
    fill(connection, COLUMNS[key_type], keys)

    plan = Views(planner, "of %s").plan(connection, ROWS)

    assert problems(connection, ROWS, plan) == []
    shown = [
        row
        for each in plan.partitions
        for row in connection.execute(text(f"SELECT id FROM {each.view}")).scalars()
    ]
    assert sorted(shown) == ids(connection, plan)
    assert len(shown) == len(keys)


def test_views_are_made_anew_and_dropped(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE parts (id bigint, name text)"))
    connection.execute(text("INSERT INTO parts SELECT i FROM generate_series(1, 9) i"))
    parts = Table("parts", schema="public")
    planner = Views(KeyRanges([(None, 4), (4, None)]), "parts", "public")
    first = planner.plan(connection, parts)
    again = planner.plan(connection, parts)

    assert [each.view for each in again.partitions] == ["public.parts_1", "public.parts_2"]
    assert connection.execute(text("SELECT count(*) FROM parts_1")).scalar() == 3
    assert drop_views(connection, first.partitions) == ["public.parts_1", "public.parts_2"]
    assert drop_views(connection, again.partitions)
    found = connection.execute(text("SELECT to_regclass('parts_1')")).scalar()
    assert found is None


def test_views_of_physical_partitions(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE parts (id bigint) PARTITION BY LIST (id)"))
    connection.execute(text('CREATE TABLE "Part One" PARTITION OF parts FOR VALUES IN (1)'))
    connection.execute(text("CREATE TABLE parts_rest PARTITION OF parts DEFAULT"))
    connection.execute(text("INSERT INTO parts VALUES (1), (2), (NULL)"))
    parts = Table("parts")

    plan = Views(Physical(), "parts_view").plan(connection, parts)

    assert problems(connection, parts, plan) == []
    assert {each.source for each in plan.partitions} == {'public."Part One"', "public.parts_rest"}
    counts = [
        connection.execute(text(f"SELECT count(*) FROM {each.view}")).scalar()
        for each in plan.partitions
    ]
    assert sorted(counts) == [1, 2]


def test_marked_rows_have_no_view(connection: Connection) -> None:
    make_table(connection, "bigint")
    with pytest.raises(PlanError, match="There is no view of partition 1"):
        Views(Indicator(parts=1), "v").plan(connection, ROWS)


@pytest.mark.parametrize("key_type", COLUMNS)
def test_a_stored_bucket_splits_as_the_hash_does(connection: Connection, key_type: KeyType) -> None:
    make_table(connection, COLUMNS[key_type])
    fill(connection, COLUMNS[key_type], [*SOME[key_type], None])
    buckets.add_bucket(connection, ROWS, "in bucket", 3)
    fill(connection, COLUMNS[key_type], [*SOME[key_type], None])  # of new rows, too
    stored = Hash(parts=3, column="in bucket").plan(connection, ROWS)
    computed = Hash(parts=3).plan(connection, ROWS)
    assert problems(connection, ROWS, stored) == []
    for one, other in zip(stored.partitions, computed.partitions, strict=True):
        assert read(connection, ROWS, stored, one) == read(connection, ROWS, computed, other)
    assert len(ids(connection, stored)) == len(SOME[key_type]) + 1


def test_another_modulus_is_computed_anew(connection: Connection) -> None:
    make_table(connection, "bigint")
    fill(connection, "bigint", range(100))
    buckets.add_bucket(connection, ROWS, "bucket", 8)
    few = Hash(parts=3, column="bucket").plan(connection, ROWS)
    assert [each.kind for each in problems(connection, ROWS, few)] == [Fault.SHORT]

    buckets.rebalance(connection, ROWS, "bucket", 3)

    assert problems(connection, ROWS, few) == []
    assert len(ids(connection, few)) == 100
    buckets.drop_bucket(connection, ROWS, "bucket")
    with pytest.raises(PlanError, match="The database does not compute bucket of batch_rows"):
        buckets.rebalance(connection, ROWS, "bucket", 3)


def test_rows_without_a_bucket_need_an_owner(connection: Connection) -> None:
    make_table(connection, "bigint")
    fill(connection, "bigint", [1, 2])
    connection.execute(text("ALTER TABLE batch_rows ADD COLUMN bucket integer"))
    before = Hash(parts=2, column="bucket").plan(connection, ROWS)
    connection.execute(text("UPDATE batch_rows SET bucket = 1 WHERE key = 1"))
    assert problems(connection, ROWS, before) == []
    assert len(ids(connection, before)) == 2


def test_a_query_is_split_like_a_table(connection: Connection) -> None:
    make_table(connection, "bigint")
    fill(connection, "bigint", [*range(20), None])
    rows = table("batch_rows", column("id"), column("key", BigInteger))
    source = Query(select(rows.c.id, (rows.c.key % 7).label("rest")), "rest")
    for planner in (Even(parts=3), Hash(parts=3), KeyRanges([(None, 3), (3, None)])):
        plan = planner.plan(connection, source)
        assert problems(connection, source, plan) == []
        seen = [i for each in plan.partitions for i in read(connection, source, plan, each)]
        assert len(seen) == len(set(seen)) == 21


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
