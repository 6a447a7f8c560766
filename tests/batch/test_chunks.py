"""Chunks of rows: read, handed over, committed."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tasks_app import cancel_task
from tasks_app.batch.planners.even import Even, Hash
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.locks import Versioned
from tasks_app.pool.batch import partition_progress
from tests.batch.yard import Yard
from tests.clock import until
from tests.pool.interleave import blocked, two
from tests.runtime.hints.ear import Ear, ear, told  # noqa: F401  the fixture


def refusing(yard: Yard, *bad: int) -> Any:
    def chunk(ctx: Any, rows: Any) -> None:
        ctx.state["seen"] = ctx.state.get("seen", 0) + len(rows)
        yard.note(ctx, rows)
        for row in rows:
            if row.id in bad:
                raise ValueError(f"row {row.id} is odd\nDETAIL: its contents")

    return chunk


@pytest.mark.test_all
def test_rows_that_fail_are_left_out_with_their_reasons(yard: Yard) -> None:
    yard.rows(100)
    bad = (7, 8, 60)

    view = yard.completes(yard.step(refusing(yard, *bad), skip_limit=3))

    assert yard.done == [i for i in range(1, 101) if i not in bad]
    assert view.tallies["step"].counts[:3] == (100, 97, 3)
    with yard.engine.connect() as connection:
        left_out = partition_progress.find_skips(connection, view.batch.id)
    assert sorted((each.partition_no, each.key) for each in left_out) == [
        (1, "7"),
        (1, "8"),
        (3, "60"),
    ]
    assert {each.reason.split(":")[0] for each in left_out} == {"ValueError"}
    assert not any("contents" in each.reason for each in left_out)
    states = [part.checkpoint["state"]["seen"] for part in yard.parts(view.batch.id)]
    assert states == [23, 25, 24, 25]  # what failed did not count


def test_more_than_may_be_left_out_fail_the_partition(yard: Yard) -> None:
    yard.rows(100)
    step = yard.step(refusing(yard, 7, 8, 9), skip_limit=2, max_attempts=1, cuts=())
    view = yard.fails(step)
    error = str(yard.parts(view.batch.id)[0].error)
    assert "Row 9 of partition 1 fails (ValueError: row 9 is odd), and no more than 2" in error
    assert yard.done == []  # one chunk of ten
    assert yard.sql("SELECT count(*) FROM task_batch_skip") == 0


@pytest.mark.test_all
@pytest.mark.parametrize("commit", ["every", "end"])
def test_partitions_together_leave_out_no_more_than_the_limit(yard: Yard, commit: str) -> None:
    """Both have looked, and found room, before either of them commits."""
    yard.rows(100)
    meet = threading.Barrier(2, timeout=10)

    def chunk(ctx: Any, rows: Any) -> None:
        if rows[0].id in (26, 76) and len(rows) == 1:
            meet.wait()
            raise ValueError
        if rows[0].id in (26, 76):
            raise ValueError
        yard.note(ctx, rows)

    step = yard.step(
        chunk, skip_limit=1, max_attempts=1, cuts=(51,), commit=commit, on_abort="continue"
    )
    yard.sql("DELETE FROM todo WHERE id < 26 OR id BETWEEN 51 AND 75")

    view = yard.run(yard.job(step), concurrency=2, together=False)

    assert sorted(yard.statuses(view.batch.id)) == ["COMPLETED", "FAILED"]
    assert yard.sql("SELECT count(*) FROM task_batch_skip") == 1
    assert len(yard.done) == 24
    assert "and no more than 1 may be left out" in str([p.error for p in yard.parts(view.batch.id)])


def test_who_counts_what_is_left_out_waits_for_others(yard: Yard) -> None:
    batch_id = yard.start(yard.job(yard.step())).batch_id

    with two(yard.engine) as (a, b):
        for number, connection in enumerate((a, b)):
            partition_progress.add_skips(connection, batch_id, "step", number, [("7", "odd")])
        assert partition_progress.count_skips_exclusively(a, batch_id, "step") == 1
        waits_for = blocked(
            yard.engine,
            b,
            a,
            lambda c: partition_progress.count_skips_exclusively(c, batch_id, "step"),
        )
        a.commit()
        assert waits_for.result() == 2


def test_what_other_chunks_left_out_counts(yard: Yard) -> None:
    """Three rows in three chunks, and the limit is two."""
    yard.rows(100)
    step = yard.step(refusing(yard, 7, 17, 27), skip_limit=2, max_attempts=1, cuts=())
    view = yard.fails(step)
    assert "Row 27 of partition 1 fails" in str(yard.parts(view.batch.id)[0].error)
    assert yard.sql("SELECT count(*) FROM task_batch_skip") == 2
    assert yard.done == [i for i in range(1, 21) if i not in {7, 17}]


def test_only_what_may_be_left_out_is(yard: Yard) -> None:
    yard.rows(10)
    step = yard.step(refusing(yard, 7), skip_limit=5, skips=[LookupError], max_attempts=1, cuts=())
    assert yard.run(yard.job(step)).batch.status is BatchStatus.FAILED


@pytest.mark.test_all
def test_rows_are_left_out_of_one_commit_at_the_end_too(yard: Yard) -> None:
    yard.rows(100)
    yard.completes(yard.step(refusing(yard, 7), skip_limit=1, commit="end"))
    assert yard.done == [i for i in range(1, 101) if i != 7]


@pytest.mark.test_all
def test_the_chunks_before_the_one_that_fails_stay_and_are_not_read_again(yard: Yard) -> None:
    yard.rows(100)
    seen: list[int] = []
    broken = [True]

    def chunk(ctx: Any, rows: Any) -> None:
        seen.extend(row.id for row in rows)
        if broken and rows[-1].id > 50:
            broken.clear()
            raise SystemExit
        yard.note(ctx, rows)

    yard.completes(yard.step(chunk, cuts=()))

    assert yard.done == list(range(1, 101))
    assert [i for i in set(seen) if seen.count(i) > 1] == list(range(51, 61))


@pytest.mark.test_all
@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
def test_what_passes_is_waited_out_and_charges_nothing(yard: Yard, code: str) -> None:
    yard.rows(20)
    left = [3]

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        if left[0]:
            left[0] -= 1
            ctx.connection.execute(
                text(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$")
            )

    yard.completes(yard.step(chunk, cuts=(), max_attempts=1))

    assert yard.done == list(range(1, 21))
    assert yard.sql("SELECT count(*) FROM task_attempt") == 0


@pytest.mark.test_all
def test_a_checkpoint_that_cannot_be_written_takes_its_rows_back(yard: Yard) -> None:
    """The database refuses the second one, once: a sequence knows of no rollback."""
    yard.rows(30)
    yard.sql("CREATE SEQUENCE stumbles")
    yard.sql("""
        CREATE FUNCTION stumble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.checkpoint IS DISTINCT FROM OLD.checkpoint AND nextval('stumbles') = 2 THEN
                RAISE EXCEPTION 'not now' USING ERRCODE = '40001';
            END IF;
            RETURN NEW;
        END $$""")
    yard.sql(
        "CREATE TRIGGER stumble BEFORE UPDATE ON task_partition"
        " FOR EACH ROW EXECUTE FUNCTION stumble()"
    )
    try:
        view = yard.run(yard.job(yard.step(cuts=(), max_attempts=1)))
    finally:
        yard.sql("DROP TRIGGER stumble ON task_partition")
        yard.sql("DROP FUNCTION stumble")
        yard.sql("DROP SEQUENCE stumbles")

    assert view.batch.status is BatchStatus.COMPLETED
    assert [calls[0] for calls in yard.calls if calls] == [1, 11, 11, 21]
    assert yard.done == list(range(1, 31))
    assert view.tallies["step"].counts[:3] == (30, 30, 0)


@pytest.mark.parametrize("of", ["session", "connection"])
@pytest.mark.parametrize("options", [{}, {"commit": "end"}, {"skip_limit": 100}])
def test_a_handler_that_rolls_back_fails_the_run(yard: Yard, of: str, options: Any) -> None:
    """Its rows would be counted, and passed over, and nothing of them would stand."""
    yard.rows(30)

    def chunk(ctx: Any, rows: Any) -> None:
        getattr(ctx, of).execute(text("SELECT 1"))
        yard.note(ctx, rows)
        if rows[0].id == 11:
            getattr(ctx, of).rollback()

    view = yard.fails(yard.step(chunk, cuts=(), max_attempts=1, **options))

    assert "The chunk handler rolled back" in str(yard.parts(view.batch.id)[0].error)
    done = 0 if options.get("commit") else 10
    assert view.tallies["step"].counts[:3] == (done, done, 0)
    assert yard.done == list(range(1, done + 1))


@pytest.mark.test_all
def test_a_handler_may_roll_back_a_savepoint_of_its_own(yard: Yard) -> None:
    yard.rows(30)

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        savepoint = ctx.session.begin_nested()
        yard.note(ctx, rows)
        savepoint.rollback()

    yard.completes(yard.step(chunk, cuts=(), max_attempts=1))
    assert yard.done == list(range(1, 31))


@pytest.mark.test_all
def test_a_real_deadlock_with_somebody_online(yard: Yard) -> None:
    yard.rows(20)
    met, first = threading.Event(), [True]

    def online() -> None:
        with yard.engine.begin() as connection:
            connection.execute(text("SET deadlock_timeout = '10s'"))
            connection.execute(text("UPDATE todo SET amount = -1 WHERE id = 20"))
            met.wait(10)
            connection.execute(text("UPDATE todo SET amount = -1 WHERE id = 1"))

    def chunk(ctx: Any, rows: Any) -> None:
        ctx.connection.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
        ctx.connection.execute(text("UPDATE todo SET place = 'x' WHERE id = 1"))
        if first:
            first.clear()
            yard.bench.beside(online)
            until(lambda: yard.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") or met.set())
        ctx.connection.execute(text("UPDATE todo SET place = 'x' WHERE id = 20"))
        yard.note(ctx, rows)

    def until_met(ctx: Any, rows: Any) -> None:
        chunk(ctx, rows)

    yard.completes(yard.step(until_met, cuts=(), commit_every=50, max_attempts=1))

    assert yard.done == list(range(1, 21))
    assert yard.sql("SELECT amount FROM todo WHERE id = 1") == -1
    assert yard.sql("SELECT place FROM todo WHERE id = 20") == "x"


class Base(DeclarativeBase):
    pass


class Stock(Versioned, Base):
    __tablename__ = "stock"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


@pytest.mark.test_all
def test_a_row_that_changed_meanwhile_is_read_again(yard: Yard) -> None:
    """The version refuses the write; the chunk is read anew, and nothing is charged."""
    yard.sql("CREATE TABLE IF NOT EXISTS stock (id int PRIMARY KEY, amount int, version int)")
    yard.sql("TRUNCATE stock")
    yard.sql("INSERT INTO stock SELECT i, 10, 1 FROM generate_series(1, 5) i")
    first = [True]

    def chunk(ctx: Any, rows: Any) -> None:
        found = [ctx.session.get(Stock, row.id) for row in rows]
        if first:
            first.clear()
            yard.sql("UPDATE stock SET amount = 100, version = 2 WHERE id = 3")
        for each in found:
            each.amount += 1

    from tasks_app.domain.partition.records import Table

    yard.completes(yard.step(chunk, source=Table("stock"), cuts=(), max_attempts=1))

    assert yard.sql("SELECT sum(amount) FROM stock") == 4 * 11 + 101


@pytest.mark.test_all
def test_a_worker_that_stops_gives_back_at_a_chunk(yard: Yard) -> None:
    yard.rows(100)
    job = yard.job(
        yard.step(lambda ctx, rows: (yard.note(ctx, rows), leave.set())[0], cuts=(), max_attempts=1)
    )
    leave = threading.Event()
    begun = yard.start(job)
    yard.plan()
    work = yard.bench.work()

    def stop() -> None:
        leave.wait(10)
        work.child.inflight.stop()

    yard.bench.beside(stop)
    work.run()
    work.child.stop()

    part = yard.parts(begun.batch_id)[0]
    assert yard.bench.state(part.task_id or 0) == "PENDING"
    assert yard.sql("SELECT failures FROM task_pending WHERE id = :id", id=part.task_id) == 0
    assert len(yard.done) < 100
    yard.bench.drain()
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
def test_a_turn_that_is_over_lets_others_run(yard: Yard) -> None:
    yard.rows(100)
    runs: list[int] = []

    def chunk(ctx: Any, rows: Any) -> None:
        runs.append(ctx.attempt)
        yard.note(ctx, rows)

    yard.completes(yard.step(chunk, cuts=(), turn=timedelta(0), max_attempts=1))
    assert runs == list(range(1, 11))
    assert yard.done == list(range(1, 101))


@pytest.mark.test_all
def test_a_queue_that_stands_still_holds_a_run_at_its_next_chunk(yard: Yard) -> None:
    yard.tuning = replace(yard.tuning, look_every_s=0)
    yard.rows(100)
    pause = "INSERT INTO task_queue_pause (queue) VALUES ('default')"

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        if rows[0].id == 21:
            yard.sql(pause)

    begun = yard.start(yard.job(yard.step(chunk, cuts=(), max_attempts=1)))
    yard.bench.drain()
    assert yard.done == list(range(1, 31))
    assert yard.bench.state(yard.parts(begun.batch_id)[0].task_id or 0) == "PENDING"

    yard.sql("DELETE FROM task_queue_pause")
    yard.bench.drain()

    assert yard.done == list(range(1, 101))
    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED


@pytest.mark.test_all
def test_a_cancelled_task_stops_at_a_chunk(yard: Yard) -> None:
    yard.rows(100)

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        with yard.engine.begin() as connection:
            cancel_task(connection, ctx.task_id)

    view = yard.run(yard.job(yard.step(chunk, cuts=(), max_attempts=1)))
    assert yard.done == list(range(1, 11))
    assert view.batch.status is BatchStatus.FAILED
    assert yard.statuses(view.batch.id) == ["STOPPED"]
    assert yard.sql("SELECT count(*) FROM task_error") == 0


@pytest.mark.parametrize("at", ["a bytecode", "a statement"])
def test_a_task_that_is_cancelled_within_a_chunk_stops_before_it(yard: Yard, at: str) -> None:
    """The chunk is undone, its rows are searched for no fault, and a restart begins with it."""
    yard.rows(30)

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        if rows[0].id == 11 and yard.bench.runs.append(rows) is None:
            with yard.engine.begin() as connection:
                cancel_task(connection, ctx.task_id)
            if at == "a statement":
                ctx.connection.execute(text("SELECT pg_sleep(22)"))
            until(lambda: False, 20)

    job = yard.job(yard.step(chunk, cuts=(), max_attempts=1, skip_limit=5))
    view = yard.run(job)
    assert (yard.done, len(yard.bench.runs)) == (list(range(1, 11)), 1)
    assert yard.statuses(view.batch.id) == ["STOPPED"]
    assert view.batch.status is BatchStatus.FAILED


@pytest.mark.test_all
def test_a_connection_that_is_lost_is_no_rows_fault(yard: Yard) -> None:
    """The run ends, uncharged, and another goes on behind the last commit."""
    yard.rows(30)
    calls: list[int] = []

    def chunk(ctx: Any, rows: Any) -> None:
        calls.append(rows[0].id)
        if calls == [1, 11]:
            ctx.connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        yard.note(ctx, rows)

    begun = yard.start(yard.job(yard.step(chunk, cuts=(), max_attempts=1, skip_limit=5)))
    until(lambda: (yard.bench.drain(), yard.view(begun.batch_id).batch.ended_at)[1], 30)

    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 31))
    assert calls == [1, 11, 11, 21, 31][: len(calls)]


@pytest.mark.parametrize("commit", ["every", "end"])
def test_nobody_waits_for_a_run_but_while_it_commits(yard: Yard, commit: str) -> None:
    """Neither the housekeeper that renews its lease, nor who stops the instance or cancels it."""
    yard.rows(30)
    free = "SELECT count(*) FROM (SELECT FROM {} FOR UPDATE SKIP LOCKED) AS f"

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        for table in ("task_pending", "task_partition", "task_batch", "task_group"):
            every = yard.sql(f"SELECT count(*) FROM {table}")
            assert yard.sql(free.format(table)) >= every

    view = yard.completes(yard.step(chunk, cuts=(), commit=commit, max_attempts=1))
    assert view.tallies["step"].counts[:3] == (30, 30, 0)


@pytest.mark.test_all
def test_a_chunk_whose_lease_is_lost_is_rolled_back(yard: Yard) -> None:
    yard.rows(20)
    first = [True]

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        if first:
            first.clear()
            yard.sql(
                "UPDATE task_pending SET attempt = attempt + 1, lease_token = gen_random_uuid(),"
                " lease_until = now() WHERE id = :id",
                id=ctx.task_id,
            )

    begun = yard.start(yard.job(yard.step(chunk, cuts=())))
    yard.bench.drain()
    until(lambda: (yard.bench.drain(), yard.view(begun.batch_id).batch.ended_at)[1], 30)

    assert yard.done == list(range(1, 21))


@pytest.mark.test_all
def test_all_tasks_behind_the_first_are_hinted_at(yard: Yard, ear: Ear) -> None:  # noqa: F811
    yard.rows(100)
    steps = yard.step(cuts=(50,)), yard.step(name="two", cuts=(50,))
    yard.run(yard.job(*steps))
    with yard.engine.connect() as connection:
        found = connection.execute(text("SELECT id, name FROM task_completed ORDER BY id"))
        first, *others = found
    assert first.name == "job:step:plan"
    assert len(others) == 7
    until(lambda: sorted(told(ear)) == [row.id for row in others])


MOST = 400
BEHIND = "INSERT INTO todo SELECT i + :by, 'fed', 0 FROM unnest(CAST(:ids AS bigint[])) i"


class Feeder:
    """A chunk handler that inserts a row behind all others for each that it is given."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.by = 0

    def __call__(self, ctx: Any, rows: Any) -> None:
        self.yard.note(ctx, rows)
        assert len(self.yard.calls) < MOST, "it feeds itself"
        self.by += 1_000
        ids = {"ids": [row.id for row in rows], "by": self.by}
        ctx.connection.execute(text(BEHIND), ids)


@pytest.mark.test_all
@pytest.mark.parametrize("commit", ["every", "end"])
@pytest.mark.parametrize("planner", [Even(parts=3), Even(parts=1), Hash(parts=2)])
def test_rows_behind_its_end_are_for_a_new_instance(yard: Yard, planner: Any, commit: str) -> None:
    """A partition ends where it does when its first run starts, so one may be given another's."""
    yard.rows(60)
    step = yard.step(Feeder(yard), planner=planner, commit=commit)
    view = yard.completes(step)
    assert set(range(1, 61)) <= set(yard.done)
    assert len(yard.done) == len(set(yard.done)) == view.tallies["step"].counts.read < 250
    if planner == Even(parts=1):
        assert yard.done == list(range(1, 61))


@pytest.mark.test_all
def test_who_goes_on_after_a_crash_ends_where_the_first_run_would_have(yard: Yard) -> None:
    yard.rows(60)
    feeds = Feeder(yard)

    def chunk(ctx: Any, rows: Any) -> None:
        feeds(ctx, rows)
        if len(yard.calls) in (2, 5):
            raise SystemExit

    step = yard.step(chunk, cuts=(), max_attempts=5)
    yard.completes(step)
    assert yard.done == list(range(1, 61))


@pytest.mark.test_all
def test_who_is_given_half_of_the_rest_ends_there_too(yard: Yard) -> None:
    yard.steal_at_once()
    yard.rows(430)
    view = yard.completes(yard.step(Feeder(yard), cuts=(), steal=True))
    assert view.tallies["step"].total > 1
    assert yard.done == list(range(1, 431))


@pytest.mark.test_all
def test_rows_that_come_before_a_partition_starts_are_its_own(yard: Yard) -> None:
    yard.rows(60)
    begun = yard.start(yard.job(yard.step(cuts=(31,))))
    yard.plan()
    yard.rows(80)
    yard.bench.drain()
    assert yard.view(begun.batch_id).batch.status is BatchStatus.COMPLETED
    assert yard.done == list(range(1, 81))


@pytest.mark.test_all
@pytest.mark.parametrize("how", ["clear", "reverse", "pop"])
def test_a_handler_may_do_with_its_list_what_it_likes(yard: Yard, how: str) -> None:
    yard.rows(60)

    def chunk(ctx: Any, rows: Any) -> None:
        yard.note(ctx, rows)
        getattr(rows, how)()

    view = yard.run(yard.job(yard.step(chunk, cuts=())))
    assert yard.done == list(range(1, 61))
    assert view.tallies["step"].counts[:3] == (60, 60, 0)
