"""ctx.commit and ctx.checkpoint: what was done so far stands, and the next attempt knows it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from tasks_app.domain.errors import InvalidTaskError, LeaseLostError
from tasks_app.domain.handlers.outcomes import Retry, Snooze
from tasks_app.domain.tasks.run import Fence
from tasks_app.pool.runs.leases import rescue_claims
from tasks_app.pool.tasks.run_records import read_checkpoint
from tasks_app.runtime.api.producer import create_task
from tests.clock import until
from tests.factory import LEASE, some
from tests.runtime.bench import EFFECT, Bench, effect
from tests.runtime.effects import KILL_ME


def by_connection(ctx: Any, note: str = "") -> None:
    ctx.connection.execute(text(EFFECT), {"id": ctx.task_id, "note": note})


def by_both(ctx: Any, note: str = "") -> None:
    by_connection(ctx, note)
    ctx.session.flush()
    by_connection(ctx, note)


WAYS = {"session": (effect, 1), "connection": (by_connection, 1), "both": (by_both, 2)}
ways = pytest.mark.parametrize(("write", "number"), WAYS.values(), ids=list(WAYS))


def kept(bench: Bench, task_id: int) -> Any:
    found = bench.do(read_checkpoint, task_id)
    return found and found.checkpoint


@ways
def test_what_is_committed_stands_when_the_rest_rolls_back(bench: Bench, write, number) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.checkpoint)
        if ctx.checkpoint is None:
            write(ctx, "first")
            ctx.commit({"done": 1})
            assert bench.effects(ctx.task_id) == number
            write(ctx, "lost")
            raise Retry
        write(ctx, "second")

    task_id = bench.run_one()

    assert bench.runs == [None, {"done": 1}]
    assert bench.sql("SELECT array_agg(note ORDER BY note) FROM effect") == sorted(
        ["first", "second"] * number
    )
    assert bench.state(task_id) == "SUCCEEDED"


@ways
def test_a_handler_that_is_called_again_after_a_conflict_goes_on_there(
    bench: Bench, write, number
) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append((ctx.attempt, ctx.checkpoint))
        if ctx.checkpoint is None:
            write(ctx)
            ctx.commit({"done": 1})
            ctx.connection.execute(text("DO $$ BEGIN RAISE serialization_failure; END $$"))

    task_id = bench.run_one()

    assert bench.runs == [(1, None), (1, {"done": 1})]
    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", number)


@ways
def test_many_commits_of_one_run(bench: Bench, write, number) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        for n in range(5):
            write(ctx)
            ctx.commit({"n": n})
        bench.runs.append(ctx.checkpoint)

    task_id = bench.run_one()
    assert bench.runs == [{"n": 4}]
    assert bench.effects(task_id) == 5 * number
    assert bench.sql("SELECT count(DISTINCT xmin::text) FROM effect") == 5


def test_a_checkpoint_and_its_effects_are_one_transaction(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        ctx.commit({"n": 1})

    bench.run_one()
    mine = bench.sql("SELECT xmin::text FROM effect")
    assert mine == bench.sql("SELECT xmin::text FROM task_progress")


def test_in_an_async_handler(bench: Bench) -> None:
    @bench.handler(retry="0s,0s")
    async def h(ctx: Any) -> None:
        point = await ctx.checkpoint
        bench.runs.append(point)
        await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": str(point)})
        await ctx.commit({"after": 7})
        assert await ctx.checkpoint == {"after": 7}
        if point is None:
            await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": "lost"})
            raise Retry

    task_id = bench.run_one()

    assert bench.runs == [None, {"after": 7}]
    assert bench.effects(task_id) == 2
    assert bench.state(task_id) == "SUCCEEDED"


def test_a_checkpoint_that_is_set_is_kept_by_the_next_commit(bench: Bench) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        if ctx.attempt == 1:
            ctx.checkpoint = {"a": 1}
            assert kept(bench, ctx.task_id) is None
            ctx.commit()
            ctx.checkpoint = {"a": 2}
            raise Snooze(0)
        bench.runs.append(ctx.checkpoint)
        ctx.checkpoint = None
        ctx.commit()
        bench.runs.append(kept(bench, ctx.task_id))

    bench.run_one()

    assert bench.runs == [{"a": 1}, None]


def test_progress_is_committed_with_it(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        ctx.progress(0.25, "a quarter")
        ctx.commit()

    task_id = bench.run_one()
    found = some(bench.do(read_checkpoint, task_id))
    assert found[:3] == (None, 0.25, "a quarter")


def rescued(bench: Bench, fence: Fence) -> None:
    """Somebody takes the run's claim away; not while the housekeeper renews it, which passes."""

    def taken() -> bool:
        return bool(bench.do(rescue_claims, [fence], lease=LEASE, max_crashes=5))

    until(taken)


@ways
def test_who_lost_the_lease_commits_nothing(bench: Bench, write, number) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        if ctx.attempt > 1:
            return
        write(ctx)
        rescued(bench, ctx.fence)
        with pytest.raises(LeaseLostError):
            ctx.commit({"a": 1})
        bench.runs.append("refused")

    task_id = bench.execute_one()

    assert bench.runs == ["refused"]
    assert bench.effects(task_id) == 0
    assert kept(bench, task_id) is None
    assert bench.state(task_id) == "PENDING"


def test_who_lost_the_lease_in_an_async_handler(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any) -> None:
        await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
        rescued(bench, ctx.fence)
        with pytest.raises(LeaseLostError):
            await ctx.commit({"a": 1})
        bench.runs.append("refused")

    task_id = bench.execute_one()
    assert bench.runs == ["refused"]
    assert bench.effects(task_id) == 0


def test_a_cancellation_is_heard_of_at_once(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.sql("UPDATE task_pending SET cancel_requested_at = now()")
        ctx.commit()
        bench.runs.append(ctx.cancelled)

    bench.run_one()
    assert bench.runs == [True]


@ways
def test_not_in_a_savepoint(bench: Bench, write, number) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        write(ctx)
        nested = ctx.connection if write is by_connection else ctx.session
        with nested.begin_nested(), pytest.raises(RuntimeError, match="savepoint"):
            ctx.commit()
        ctx.commit()

    task_id = bench.run_one()
    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.effects(task_id) == number


def test_what_cannot_be_stored_is_refused_before_anything_is_committed(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        with pytest.raises(InvalidTaskError, match=r"checkpoint\.x"):
            ctx.commit({"x": float("nan")})
        with pytest.raises(InvalidTaskError, match="checkpoint"):
            ctx.commit({"x": "a" * 70_000})
        bench.runs.append(bench.effects(ctx.task_id))

    bench.run_one()
    assert bench.runs == [0]


def test_a_connection_that_dies_costs_nothing_and_the_next_attempt_goes_on(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.checkpoint)
        effect(ctx)
        if ctx.checkpoint is None:
            ctx.commit({"n": 1})
            effect(ctx, "lost")
            ctx.connection.execute(KILL_ME)

    task_id = bench.execute_one()
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    bench.drain()

    assert bench.runs == [None, {"n": 1}]
    assert (bench.effects(task_id), bench.state(task_id)) == (2, "SUCCEEDED")


@pytest.mark.test_all
def test_a_connection_that_dies_at_the_commit(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        effect(ctx)
        if not bench.runs:
            bench.runs.append(ctx.task_id)
            bench.sql(
                "SELECT pg_terminate_backend(:pid)",
                pid=ctx.connection.execute(text("SELECT pg_backend_pid()")).scalar(),
            )
            ctx.commit({"n": 1})

    task_id = bench.execute_one()
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    bench.drain()

    assert (bench.effects(task_id), bench.state(task_id)) == (1, "SUCCEEDED")
    assert bench.task(task_id).failures == 0


def test_listeners_of_the_session_hear_of_each_commit(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        event.listen(ctx.session, "after_commit", lambda _: bench.runs.append("heard"))
        effect(ctx)
        ctx.commit()
        effect(ctx)

    bench.run_one()
    assert bench.runs == ["heard"] * 2


def test_a_commit_that_a_listener_stopped_lets_no_other_pass(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        @event.listens_for(ctx.session, "before_commit")
        def stop(_: Session) -> None:
            raise KeyError

        effect(ctx)
        with pytest.raises(KeyError):
            ctx.commit()
        ctx.connection.commit()

    task_id = bench.run_one()

    assert (bench.state(task_id), bench.effects(task_id)) == ("FAILED", 0)
    assert "commits together" in bench.error(task_id)


def test_tasks_that_were_created_before_a_commit_exist(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        create_task(ctx.session, "after", delay="1h")
        ctx.commit()
        create_task(ctx.session, "lost")
        raise ValueError

    bench.run_one()
    assert bench.sql("SELECT array_agg(name) FROM task_pending") == ["after"]


def test_a_run_is_told_that_its_worker_stops(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        before = ctx.stopping
        child.inflight.stop()
        bench.runs.append((before, ctx.stopping))

    child = bench.child()
    child.execute([bench.create()])
    assert bench.runs == [(False, True)]


def test_the_session_keeps_what_it_was(bench: Bench) -> None:
    """One session for the whole run: what the handler holds of it stays good."""

    @bench.handler()
    def h(ctx: Any) -> None:
        session: Session = ctx.session
        effect(ctx)
        ctx.commit()
        session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
        assert ctx.session is session

    task_id = bench.run_one()
    assert bench.effects(task_id) == 2
