"""Writes through ctx.session and ctx.connection: one commit with the outcome, or none (P4, P6)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from psycopg.errors import SerializationFailure
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tasks_app import acancel_task, acreate_task, acreate_tasks
from tasks_app.runtime.handler_db import handler_sessions
from tests.cases import in_one_test
from tests.clock import until
from tests.runtime.bench import EFFECT, Bench, effect
from tests.runtime.effects import (  # noqa: F401  fixtures
    KILL_ME,
    test_effect_outcome_and_move_carry_one_transaction_id,
    test_effects_roll_back_when_the_handler_raises,
    test_effects_roll_back_when_the_lease_was_lost_meanwhile,
)
from tests.runtime.handler_db.twins import twin

INSERT = b"INSERT INTO effect"
"""What handlers do, and no housekeeper, whose COMMIT might be lost in place of theirs."""
COMMIT = b"\0tasks_app COMMIT\0"
"""As it is said under its name, not where it is prepared."""
BACKEND = text("SELECT pg_backend_pid()")
DISK_FULL = "DO $$ BEGIN RAISE 'no space left on device' USING ERRCODE = '53100'; END $$"


class TestNobodyElseCommits:
    """An effect that is committed before its outcome could be there twice."""

    def refused(self, bench: Bench, commit: Callable[[Any], object]) -> None:
        @bench.handler(retry="0s,0s")
        def h(ctx: Any) -> None:
            effect(ctx)
            commit(ctx)

        task_id = bench.run_one()
        assert (bench.effects(task_id), bench.state(task_id)) == (0, "FAILED")
        assert "commits together with the task's outcome" in bench.error(task_id)

    def test_session_commit(self, bench: Bench) -> None:
        self.refused(bench, lambda ctx: ctx.session.commit())

    def test_connection_commit(self, bench: Bench) -> None:
        self.refused(bench, lambda ctx: ctx.connection.commit())

    def test_a_savepoint_may_be_committed(self, bench: Bench) -> None:
        @bench.handler()
        def h(ctx: Any) -> None:
            with ctx.session.begin_nested():
                effect(ctx)

        task_id = bench.run_one()
        assert (bench.effects(task_id), bench.state(task_id)) == (1, "SUCCEEDED")


def _executes(ctx: Any) -> None:
    ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})


async def _on_the_connection(ctx: Any) -> None:
    await ctx.session.scalar(text("SELECT 1"))
    connection = await ctx.session.connection()
    connection.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})


async def _kept_in_a_name(ctx: Any) -> None:
    later = ctx.session.scalars(text("SELECT 1"))
    await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
    assert later


async def _commits(ctx: Any) -> None:
    ctx.commit({"page": 1})


async def _keeps_a_step(ctx: Any) -> None:
    ctx.step("a", int)


async def _reads_its_checkpoint(ctx: Any) -> None:
    assert ctx.checkpoint


async def _creates(ctx: Any) -> None:
    acreate_task(ctx.session, "next")


async def _creates_on_the_connection(ctx: Any) -> None:
    acreate_tasks(await ctx.session.connection(), [])


async def _cancels(ctx: Any) -> None:
    acancel_task(ctx.session, 1)


@in_one_test(
    "forgets, what",
    [
        (_executes, "AsyncSession.execute()"),
        (_on_the_connection, "AsyncConnection.execute()"),
        (_kept_in_a_name, "AsyncSession.scalars()"),
        (_commits, "ctx.commit()"),
        (_keeps_a_step, "ctx.step()"),
        (_reads_its_checkpoint, "ctx.checkpoint()"),
        (_creates, "acreate_task()"),
        (_creates_on_the_connection, "acreate_tasks()"),
        (_cancels, "acancel_task()"),
    ],
)
def test_a_forgotten_await_is_named(bench: Bench, forgets: Callable[[Any], Any], what: str) -> None:
    name = f"forgets {what}".replace(" ", ".").replace("()", "")

    @bench.handler(name, max_attempts=1)
    async def h(ctx: Any) -> None:
        if (rest := forgets(ctx)) is not None:
            await rest

    task_id = bench.run_one(name)

    task = bench.task(task_id)
    first = forgets.__code__.co_firstlineno
    lines = [f"{what}, {__name__}:{first + n}." for n in range(1, 5)]
    assert (task.state, bench.effects(task_id)) == ("FAILED", 0)
    assert any(line in (task.error or "") for line in lines), task.error


def test_what_is_awaited_or_closed_in_time_is_not_forgotten(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any) -> None:
        effects = [ctx.session.scalar(text("SELECT 1")) for _ in range(3)]
        effects.pop().close()
        for each in effects:
            await each
        await acreate_task(ctx.session, "next")
        await ctx.commit(await ctx.checkpoint)
        async with ctx.session.begin_nested():
            await (await ctx.session.connection()).scalar(text("SELECT 1"))

    task_id = bench.run_one()

    assert bench.state(task_id) == "SUCCEEDED"


def test_of_thousands_made_at_once_each_costs_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    known = handler_sessions.inspect.getcoroutinestate

    async def made() -> None: ...

    def state(each: Any) -> str:
        looks.append(each)
        return known(each)

    monkeypatch.setattr(handler_sessions.inspect, "getcoroutinestate", state)
    coroutines = handler_sessions.MadeCoroutines()

    for _ in range(2_000):
        coroutines.note(made(), sys._getframe())

    assert coroutines.end() is not None
    assert len(looks) < 10_000


def closes_its_session(ctx: Any) -> None:
    with ctx.session as session:
        session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})


async def closes_its_async_session(ctx: Any) -> None:
    async with ctx.session as session:
        await session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})


def closes_its_connection(ctx: Any) -> None:
    with ctx.connection as connection:
        connection.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})


@pytest.mark.parametrize(
    ("closes", "state"),
    [
        (closes_its_session, "SUCCEEDED"),
        (closes_its_async_session, "SUCCEEDED"),
        (closes_its_connection, "FAILED"),
    ],
)
def test_who_closes_what_it_writes_with_has_its_effects_or_fails(
    bench: Bench, closes: Callable[[Any], Any], state: str
) -> None:
    """Rolled back, it would be a success without its effects."""
    bench.handler(max_attempts=1)(closes)
    task_id = bench.run_one()
    assert (bench.state(task_id), bench.effects(task_id)) == (state, int(state == "SUCCEEDED"))
    assert state == "SUCCEEDED" or "Leave it open" in bench.error(task_id)


class TestTheConnectionIsLost:
    def test_a_killed_backend_returns_its_task_that_runs_again(self, bench: Bench) -> None:
        """Nobody knows whose fault it was: it counts as a crash, which charges nobody."""

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            effect(ctx)
            if ctx.attempt == 1:
                ctx.session.execute(KILL_ME)

        task_id = bench.create()

        bench.execute([task_id])  # once: it may be due again at once
        released = bench.task(task_id)
        bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
        bench.drain()

        assert (released.state, released.failures, released.crashes) == ("PENDING", 0, 1)
        assert [line.kind for line in bench.attempts(task_id)] == ["connection lost"]
        task = bench.task(task_id)
        assert (task.state, task.attempt, bench.effects(task_id)) == ("SUCCEEDED", 2, 1)

    @pytest.mark.parametrize("way", ["connection", "write"])
    def test_a_full_disk_is_named(self, bench: Bench, way: str) -> None:
        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            if way == "write":
                ctx.write(DISK_FULL)
            else:
                ctx.connection.exec_driver_sql(DISK_FULL)

        task_id = bench.create()
        bench.execute([task_id], max_crashes=1)
        task = bench.task(task_id)
        assert (task.state, task.failures, task.crashes) == ("FAILED", 0, 1)
        assert (task.error or "").startswith("database refused: The database had no room")

    @pytest.mark.test_all
    @pytest.mark.parametrize("how", ["in the handler", "before the commit"])
    def test_who_kills_each_backend_ends_in_the_error_pool(self, bench: Bench, how: str) -> None:
        @bench.handler(max_attempts=9)
        def h(ctx: Any) -> None:
            bench.runs.append(ctx.attempt)
            effect(ctx)
            if how == "in the handler":
                ctx.session.execute(KILL_ME)
            else:
                bench.sql(
                    "SELECT pg_terminate_backend(:pid, 5000)", pid=ctx.session.scalar(BACKEND)
                )

        task_id = bench.create()

        for _ in range(3):
            bench.drain(max_crashes=3)
            bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")

        task = bench.task(task_id)
        assert (task.state, task.failures, task.crashes) == ("FAILED", 0, 3)
        assert (bench.runs, bench.effects(task_id)) == ([1, 2, 3], 0)
        assert (task.error or "").startswith("connection lost: The database, which is up,")
        assert (task.error or "").endswith("(3 of at most 3 times).")

    @pytest.mark.test_all
    @pytest.mark.parametrize("seconds", [0.0, 1.0])
    def test_losing_all_connections_blames_nobody(self, bench: Bench, seconds: float) -> None:
        """A restart: at once with 0 s, so that the housekeeper's first question is answered."""

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            effect(ctx)
            if ctx.attempt == 1:
                proxy.refusing = bool(seconds)
                proxy.cut()

        task_id = bench.create()
        with bench.proxy() as (proxy, url):
            child = bench.child(url=url)
            thread = bench.beside(child.execute, [task_id])
            if seconds:
                until(lambda: proxy.refused > 1)
                proxy.refusing = False
            thread.join(10)
            until(lambda: child.inflight.empty)
            child.stop()

        task = bench.task(task_id)
        assert (task.state, task.failures, task.crashes) == ("PENDING", 0, 0)
        assert bench.attempts(task_id) == []

    @pytest.mark.test_all
    def test_an_async_settle_on_a_dead_connection_closes_it_without_a_word(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Outside its greenlet, SQLAlchemy logs an error with a traceback for each."""

        @bench.handler(max_attempts=1)
        async def h(ctx: Any) -> None:
            pid = (await ctx.session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            bench.sql("SELECT pg_terminate_backend(:pid, 5000)", pid=pid)

        task_id = bench.run_one()
        task = bench.task(task_id)
        assert (task.state, task.failures) == ("PENDING", 0)
        assert [r.getMessage() for r in caplog.records if r.name.startswith("sqlalchemy")] == []

    def test_at_most_once_is_not_run_again_after_it(self, bench: Bench) -> None:
        @bench.handler(at_most_once=True)
        def h(ctx: Any) -> None:
            ctx.session.execute(KILL_ME)

        task_id = bench.run_one()
        assert bench.state(task_id) == "FAILED"
        error = bench.error(task_id)
        assert error.startswith("connection lost: ")
        assert "before a COMMIT was sent" in error

    def test_another_database_that_is_away_is_charged_as_a_failure(self, bench: Bench) -> None:
        """Else a task would be tried for ever, every two seconds, without a trace."""
        elsewhere = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            effect(ctx)
            elsewhere.connect()

        task_id = bench.run_one()
        assert bench.state(task_id) == "FAILED"
        assert "OperationalError" in bench.error(task_id)

    @pytest.mark.parametrize("needle", [COMMIT, b"SELECT pg_sleep(0) AS lost"])
    def test_a_lost_reply_leaves_the_effect_exactly_once(self, bench: Bench, needle: bytes) -> None:
        """COMMIT: it took place, and the release finds nothing. Before it: the task runs again."""

        @bench.handler()
        def h(ctx: Any) -> None:
            bench.runs.append(ctx.attempt)
            effect(ctx)
            if ctx.attempt == 1:
                proxy.lose_reply_to(needle)
            ctx.session.execute(text("SELECT pg_sleep(0) AS lost"))

        task_id = bench.create()
        with bench.proxy(only=INSERT) as (proxy, url):
            child = bench.child(url=url)

            child.execute([task_id])
            until(lambda: child.inflight.empty)
            child.stop()
            assert proxy.lost == 1
        bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
        bench.drain()

        assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)
        assert bench.runs == ([1] if needle == COMMIT else [1, 2])


def test_an_exit_inside_the_commit_leaves_nothing_running(bench: Bench) -> None:
    """A listener of the user's session may raise anything, also while we flush for the commit."""

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        effect(ctx)

        @event.listens_for(ctx.session, "before_commit")
        def leave(_: Session) -> None:
            raise SystemExit(3)

    task_id = bench.create()
    child = bench.child()

    child.execute([task_id])

    assert child.inflight.running() == []
    assert (bench.state(task_id), bench.effects(task_id)) == ("FAILED", 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_listener_that_fails_behind_the_commit_undoes_no_success(
    bench: Bench, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.attempt)

        @event.listens_for(ctx.session, "after_commit")
        def fail(_: Session) -> None:
            raise OperationalError("", None, SerializationFailure())

        effect(ctx)

    bench.handler()(twin(h, is_async=is_async))

    task_id = bench.run_one()

    assert (bench.effects(task_id), bench.state(task_id), bench.runs) == (1, "SUCCEEDED", [1])
    assert "the lease was lost" not in caplog.text
    assert f"task {task_id}: a listener failed after the COMMIT, which stands" in caplog.text


def test_the_handlers_transaction_holds_no_lock_on_the_row_while_it_runs(bench: Bench) -> None:
    """Renewal and cancel must get through to a running task, within the moment of a renewal."""

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        with bench.engine.begin() as user:
            user.execute(text("SET LOCAL lock_timeout = '5s'"))
            try:
                user.execute(
                    text("SELECT id FROM task_pending WHERE id = :id FOR UPDATE"),
                    {"id": ctx.task_id},
                )
            except OperationalError as error:
                bench.runs.append(error)

    task_id = bench.run_one()

    assert (bench.state(task_id), bench.runs) == ("SUCCEEDED", [])
