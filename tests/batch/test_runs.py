"""How a batch job runs from its start to its end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import Connection, column, select, table, text

from tasks_app.batch.control import start_job
from tasks_app.batch.job import BatchJob
from tasks_app.batch.planners.even import Even, Fixed, Hash, How, Indicator, Physical
from tasks_app.batch.planners.flat_file import Extract, FlatFile
from tasks_app.batch.planners.keys import KeyList, KeyRanges, Repository, Views
from tasks_app.batch.step import Step
from tasks_app.domain.batch.records import BatchStatus, PartResult, StepStatus
from tasks_app.domain.errors import InvalidJobError
from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.records import File, Format, Marker, Table
from tasks_app.pool.batch import partitions
from tasks_app.pool.batch.sources.relation import Query
from tests.batch.yard import TODO, Yard


@pytest.mark.test_all
def test_each_row_is_done_once(yard: Yard) -> None:
    yard.rows(100)
    view = yard.completes(yard.step())
    assert yard.done == list(range(1, 101))
    assert yard.statuses(view.batch.id) == ["COMPLETED"] * 4
    assert view.tallies["step"].counts[:3] == (100, 100, 0)
    assert view.alive == 0
    assert max(map(len, yard.calls)) == 10


def test_a_job_exists_if_its_transaction_commits(yard: Yard) -> None:
    yard.rows(10)
    job = yard.job(yard.step())
    with yard.engine.connect() as connection:
        begun = start_job(connection, job)
        connection.rollback()
    yard.bench.drain()
    assert yard.sql("SELECT count(*) FROM task_batch") == 0
    assert yard.done == []
    assert begun.new


@pytest.mark.test_all
def test_a_table_without_rows(yard: Yard) -> None:
    yard.completes(yard.step())
    assert yard.calls == []


def test_a_step_that_reads_nothing_is_called_once(yard: Yard) -> None:
    calls = []
    yard.completes(Step("mail", None, chunk=lambda ctx, rows: calls.append(list(rows))))
    assert calls == [[]]


def test_partitions_hold_the_locks_of_their_step(yard: Yard) -> None:
    def held(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        found = yard.sql("SELECT count(*) FROM task_locks WHERE resource = 'todo' AND fence > 0")
        assert found == 1

    yard.rows(100)
    yard.completes(yard.step(held, locks="todo"))
    assert yard.done == list(range(1, 101))
    assert yard.sql("SELECT grants FROM task_lock WHERE resource = 'todo'") == 4


@pytest.mark.test_all
def test_steps_run_in_their_order_and_a_diamond_in_its_own(yard: Yard) -> None:
    order: list[str] = []

    def step(name: str, **options: Any) -> Step:
        return Step(name, None, chunk=lambda ctx, rows: order.append(ctx.step), **options)

    yard.completes(
        step("a"), step("c", after=["a"]), step("b", after=["a"]), step("d", after=["b", "c"])
    )
    assert (order[0], set(order[1:3]), order[3]) == ("a", {"b", "c"}, "d")


@pytest.mark.test_all
def test_parameters_reach_the_source_the_planner_and_the_handler(yard: Yard) -> None:
    class Params(BaseModel):
        table: str
        factor: int = 2

    yard.rows(20)
    found: list[int] = []

    def chunk(ctx: Any, rows: Any) -> None:
        found.append(ctx.params.factor * len(rows))

    step = Step(
        "step", lambda params: Table(params.table), chunk=chunk, planner=yard.step().planner
    )
    view = yard.run(yard.job(step, params=Params), {"table": "todo"})

    assert view.batch.params == {"table": "todo", "factor": 2}
    assert sum(found) == 40


@pytest.mark.test_all
def test_reduce_gets_what_partitions_leave_by_number(yard: Yard) -> None:
    yard.rows(100)

    def total(ctx: Any, rows: Any) -> None:
        ctx.state["total"] = ctx.state.get("total", 0) + sum(row.amount for row in rows)

    def merge(ctx: Any, parts: Iterator[PartResult]) -> dict[str, Any]:
        seen = list(parts)
        ctx.connection.execute(text("INSERT INTO done VALUES (0, 7)"))
        return {
            "total": sum(part.state["total"] for part in seen),
            "numbers": [part.partition_no for part in seen],
            "lows": [part.low for part in seen],
            "read": [part.counts.read for part in seen],
        }

    view = yard.completes(yard.step(total, reduce=merge))

    assert view.steps[0].result == {
        "total": sum(i % 100 for i in range(1, 101)),
        "numbers": [1, 2, 3, 4],
        "lows": [None, "26", "51", "76"],
        "read": [25, 25, 25, 25],
    }
    assert yard.done == [0]


@pytest.mark.test_all
def test_a_reduce_that_fails_fails_its_step_and_is_all_that_runs_again(yard: Yard) -> None:
    yard.rows(100)
    broken = [True]

    def merge(ctx: Any, parts: Iterator[PartResult]) -> int:
        if broken:
            raise ArithmeticError
        return sum(part.counts.read for part in parts)

    job = yard.job(yard.step(reduce=merge, max_attempts=2))
    view = yard.run(job)
    assert (view.batch.status, view.steps[0].status) == (BatchStatus.FAILED, StepStatus.FAILED)
    assert "Its reduce ended FAILED: ArithmeticError" in str(view.steps[0].error)
    broken.clear()

    view = yard.run(job)

    assert view.batch.status is BatchStatus.COMPLETED
    assert view.steps[0].result == 100
    assert yard.done == list(range(1, 101))


def test_one_commit_at_the_end(yard: Yard) -> None:
    yard.rows(100)
    before: list[int] = []

    def chunk(ctx: Any, rows: Any) -> None:
        before.append(yard.sql("SELECT count(*) FROM done"))
        yard.note(ctx, rows)

    yard.completes(yard.step(chunk, cuts=(), commit="end"))
    assert before == [0] * len(before)
    assert len(before) > 9
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
@pytest.mark.parametrize(("says", "written"), [(1, 12), (-1, 100), ("many", 100), (True, 100)])
def test_a_handler_may_say_how_many_rows_it_wrote(yard: Yard, says: Any, written: int) -> None:
    yard.rows(100)
    view = yard.run(yard.job(yard.step(lambda ctx, rows: says)))
    assert view.tallies["step"].counts.written == written  # chunks of 10, 10 and 5
    assert view.tallies["step"].counts.read == 100


def test_logs_and_tasks_say_which_partition(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    yard.rows(30)

    def chunk(ctx: Any, rows: Any) -> None:
        ctx.log.error("a word")

    view = yard.run(yard.job(yard.step(chunk, cuts=(21,))))
    words = [record for record in caplog.records if record.message.endswith(": a word")]
    assert {record.partition_no for record in words} == {1, 2}  # type: ignore[attr-defined]
    assert {record.batch_id for record in words} == {view.batch.id}  # type: ignore[attr-defined]
    assert {record.task_name for record in words} == {"job:step"}  # type: ignore[attr-defined]


def test_a_wrong_plan_starts_nothing(yard: Yard) -> None:
    yard.rows(10)
    view = yard.fails(yard.step(source=Table("nowhere"), planner=Refusing()))
    assert view.steps[0].status is StepStatus.FAILED
    assert view.steps[0].error == "There is a gap: 5 <= key < 7."
    assert view.tallies == {}
    assert yard.calls == []


class Refusing:
    """A planner that finds its plan wrong, after it has written something."""

    def plan(self, connection: Any, source: Any) -> Any:
        from tasks_app.domain.errors import PlanError

        connection.execute(text("INSERT INTO done VALUES (0, 0)"))
        raise PlanError("There is a gap: 5 <= key < 7.")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"commit": "never"}, 'is neither "every" nor "end"'),
        ({"skip_limit": -1}, "skip_limit"),
        ({"commit_every": "soon"}, "commit_every"),
        ({"join": "some"}, "join"),
        ({"on_abort": "cry"}, "on_abort"),
        ({"after": ["nobody"]}, "is no step"),
        ({"name": "a:b"}, "no valid name"),
    ],
)
def test_a_job_that_cannot_work_is_refused(yard: Yard, options: Any, words: str) -> None:
    with pytest.raises(InvalidJobError, match=words):
        yard.job(yard.step(**options))


def test_a_coroutine_is_refused_for_nobody_would_await_it(yard: Yard) -> None:
    async def chunk(ctx: Any, rows: Any) -> None: ...

    with pytest.raises(InvalidJobError, match="coroutine function"):
        yard.step(chunk)


def test_a_turn_ends_long_before_its_time_limits(yard: Yard) -> None:
    assert yard.step().turn == timedelta(minutes=10)
    assert yard.step(hard_timeout="4m").turn == timedelta(minutes=2)
    assert yard.step(timeout="30s", hard_timeout="4m").turn == timedelta(seconds=15)


def test_steps_that_wait_for_each_other_are_refused(yard: Yard) -> None:
    with pytest.raises(InvalidJobError, match="wait for each other"):
        yard.job(yard.step(name="a", after=["b"]), yard.step(name="b", after=["a"]))


def test_two_jobs_of_one_name_are_refused_and_one_that_is_imported_again_is_not() -> None:
    from tasks_app.batch.job import JOBS

    def one(ctx: Any, rows: Any) -> None: ...
    def two(ctx: Any, rows: Any) -> None: ...

    try:
        BatchJob("twice", [Step("s", TODO, chunk=one)])
        BatchJob("twice", [Step("s", TODO, chunk=one)])
        with pytest.raises(InvalidJobError, match="declared with"):
            BatchJob("twice", [Step("s", TODO, chunk=two)])
    finally:
        JOBS.pop("twice", None)


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
def test_an_empty_file_is_done(
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
def test_a_restart_of_no_partition_finds_what_came_meanwhile(yard: Yard, tmp_path: Path) -> None:
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
    view = yard.fails(step)
    assert "There are 0 partitions, but 1 are needed." in str(view.steps[0].error)


def test_a_table_that_is_not_divided_has_no_parts_to_follow(yard: Yard) -> None:
    view = yard.run(yard.job(Step("step", Table("todo"), chunk=yard.note, planner=Physical())))
    assert "todo has no partitions in the database. Split it by Even." in str(view.steps[0].error)


NOTE = "INSERT INTO child (id, parent) SELECT i, i FROM unnest(CAST(:ids AS bigint[])) AS i"


@pytest.fixture
def family(yard: Yard) -> Iterator[Yard]:
    """Rows whose parents are looked for at the COMMIT; 7 and 13 have none."""
    yard.rows(20)
    yard.sql("DROP TABLE IF EXISTS child, parent")
    yard.sql("CREATE TABLE parent (id bigint PRIMARY KEY)")
    yard.sql("INSERT INTO parent SELECT i FROM generate_series(1, 20) i WHERE i NOT IN (7, 13)")
    yard.sql("""
        CREATE TABLE child (id bigint PRIMARY KEY,
            parent bigint REFERENCES parent DEFERRABLE INITIALLY DEFERRED)""")
    yield yard
    yard.sql("DROP TABLE child, parent")


@pytest.fixture
def stumbles(yard: Yard) -> Iterator[Yard]:
    """A trigger that stumbles at the first three COMMITs, as a conflict does; and never before."""
    yard.rows(20)
    yard.sql("CREATE SEQUENCE stumbles")  # knows of no rollback
    yard.sql("""
        CREATE FUNCTION stumble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('stumbles') <= 3 THEN
                RAISE EXCEPTION 'not now' USING ERRCODE = '40001';
            END IF;
            RETURN NULL;
        END $$""")
    yield yard
    yard.sql("DROP FUNCTION stumble CASCADE")
    yard.sql("DROP SEQUENCE stumbles")


def note(ctx: Any, rows: Any, through: str = "connection") -> None:
    """A chunk handler: each row is done, and has a child."""
    ids = {"ids": [row.id for row in rows]}
    getattr(ctx, through).execute(text(NOTE), ids)


@pytest.mark.test_all
@pytest.mark.parametrize("through", ["connection", "session"])
@pytest.mark.parametrize("commit", ["every", "end"])
@pytest.mark.parametrize("rows", [10, 50])
def test_rows_no_commit_takes_are_left_out(
    family: Yard, through: str, commit: str, rows: int
) -> None:
    """The last chunk commits with the outcome: it has to know before."""
    step = family.step(
        lambda ctx, rows: note(ctx, rows, through),
        cuts=(),
        skip_limit=5,
        max_attempts=1,
        commit=commit,
        commit_every=rows,
    )

    view = family.completes(step)

    assert family.sql("SELECT array_agg(id ORDER BY id) FROM child") == [
        i for i in range(1, 21) if i not in (7, 13)
    ]
    assert view.tallies["step"].counts[:3] == (20, 18, 2)
    assert family.sql("SELECT array_agg(key ORDER BY key) FROM task_batch_skip") == ["13", "7"]


@pytest.mark.test_all
def test_a_row_that_a_commit_would_refuse_is_named(family: Yard) -> None:
    view = family.fails(family.step(note, cuts=(), skip_limit=1, max_attempts=1))
    error = str(family.parts(view.batch.id)[0].error)
    assert "Row 13 of partition 1 fails (ForeignKeyViolation" in error


@pytest.mark.test_all
def test_rows_may_be_written_before_what_they_hang_on(family: Yard) -> None:
    """As long as the chunk that sifts has written both."""
    family.sql("DELETE FROM parent")

    def chunk(ctx: Any, rows: Any) -> None:
        if any(row.id == 7 for row in rows):
            raise ValueError
        note(ctx, rows)
        ids = {"ids": [row.id for row in rows]}
        ctx.connection.execute(
            text("INSERT INTO parent SELECT unnest(CAST(:ids AS bigint[]))"), ids
        )

    family.completes(family.step(chunk, cuts=(), skip_limit=1, max_attempts=1))

    assert family.sql("SELECT count(*) FROM child") == 19


@pytest.mark.test_all
@pytest.mark.parametrize("through", ["connection", "session"])
def test_a_conflict_in_a_deferred_trigger_is_waited_out(stumbles: Yard, through: str) -> None:
    stumbles.sql("""
        CREATE CONSTRAINT TRIGGER stumble AFTER INSERT ON done DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION stumble()""")

    def chunk(ctx: Any, rows: Any) -> None:
        getattr(ctx, through)
        stumbles.note(ctx, rows)

    stumbles.completes(stumbles.step(chunk, cuts=(), max_attempts=1))
    assert stumbles.done == list(range(1, 21))
    assert stumbles.sql("SELECT count(*) FROM task_attempt") == 0


@pytest.mark.test_all
@pytest.mark.parametrize("through", ["connection", "session"])
def test_a_conflict_at_the_commit_itself_is_waited_out(stumbles: Yard, through: str) -> None:
    """It is deferred by the very statement that writes the checkpoint, behind all others."""
    stumbles.sql("CREATE TABLE late (id int)")
    stumbles.sql("""
        CREATE CONSTRAINT TRIGGER stumble AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION stumble()""")
    stumbles.sql("""
        CREATE FUNCTION put_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            SET CONSTRAINTS ALL DEFERRED;
            INSERT INTO late VALUES (1);
            RETURN NULL;
        END $$""")
    stumbles.sql("""
        CREATE TRIGGER put_off AFTER UPDATE OF checkpoint ON task_partition
        FOR EACH ROW EXECUTE FUNCTION put_off()""")

    def chunk(ctx: Any, rows: Any) -> None:
        getattr(ctx, through)
        stumbles.note(ctx, rows)

    try:
        step = stumbles.step(chunk, cuts=(), max_attempts=1)
        view = stumbles.run(stumbles.job(step))
    finally:
        stumbles.sql("DROP FUNCTION put_off CASCADE")
        stumbles.sql("DROP TABLE late")

    assert view.batch.status is BatchStatus.COMPLETED
    assert stumbles.done == list(range(1, 21))
    assert stumbles.sql("SELECT count(*) FROM task_attempt") == 0
