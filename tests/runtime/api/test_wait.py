"""Who waits for a task gets it when it is over, and holds nothing meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tasks_app import (
    Skip,
    Task,
    TasksError,
    UnknownTaskError,
    WaitTimeoutError,
    acancel_task,
    await_task,
    cancel_task,
    create_task,
    requeue_task,
    wait_task,
)
from tasks_app.runtime.api.tasks import FIRST_PAUSE_S, LONGEST_PAUSE_S, pauses
from tests.clock import Clock, until
from tests.factory import do
from tests.runtime.bench import NOW_DUE, Bench

LONG = "30s"
"""Far longer than anything here takes."""
LOOKS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE application_name = 'waiter' AND state = 'idle' AND xact_start IS NULL
        AND backend_xid IS NULL AND backend_xmin IS NULL AND query <> ''
"""


@pytest.fixture
def waiters() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def plain(bench: Bench) -> str:
    return bench.plain_url


def awaited_by(task: asyncio.Task[Any]) -> str:
    """Return the name of the coroutine for which the task's own one waits now."""
    coroutine: Any = task.get_coro()
    return getattr(coroutine.cr_await, "__name__", "")


def over(bench: Bench, task_id: int) -> Task:
    return wait_task(bench.engine, task_id, LONG)


class TestHowItEnds:
    @pytest.mark.test_all
    def test_succeeded_with_its_result(self, bench: Bench, waiters: ThreadPoolExecutor) -> None:
        bench.handler("t")(lambda ctx: {"points": 7})
        task_id = bench.create()
        waiting = waiters.submit(wait_task, bench.engine, task_id, LONG)
        bench.drain()
        task = waiting.result()
        assert (task.id, task.state, task.result) == (task_id, "SUCCEEDED", {"points": 7})

    @pytest.mark.test_all
    def test_a_retry_is_no_end(self, bench: Bench, waiters: ThreadPoolExecutor) -> None:
        @bench.handler("t", retry="1h")
        def twice(ctx: Any) -> int:
            if ctx.failures == 0:
                raise LookupError
            return 2

        task_id = bench.create()
        waiting = waiters.submit(wait_task, bench.engine, task_id, LONG)
        bench.drain()
        with pytest.raises(WaitTimeoutError):
            wait_task(bench.engine, task_id, 0)
        assert not waiting.done()
        bench.sql(NOW_DUE)
        bench.drain()

        assert waiting.result().result == 2

    def test_failed_with_its_error(self, bench: Bench) -> None:
        bench.raising(ValueError("no such order"), max_attempts=1)
        task_id = bench.run_one()
        task = over(bench, task_id)
        assert task.state == "FAILED"
        assert "no such order" in (task.error or "")

    def test_skipped_and_expired(self, bench: Bench) -> None:
        bench.raising(Skip("nothing to do"))
        skipped = bench.create()
        expired = bench.run_one(expires_at=datetime(2020, 1, 1, tzinfo=UTC))
        assert [over(bench, each).state for each in (skipped, expired)] == ["SKIPPED", "EXPIRED"]

    @pytest.mark.test_all
    def test_cancelled(self, bench: Bench, waiters: ThreadPoolExecutor) -> None:
        task_id = bench.create(delay="1h")
        waiting = waiters.submit(wait_task, bench.engine, task_id, LONG)
        bench.do(cancel_task, task_id)
        assert waiting.result().state == "CANCELLED"

    def test_requeued_it_is_not_over(self, bench: Bench) -> None:
        task_id = bench.create(delay="1h")
        with bench.engine.begin() as connection:
            cancel_task(connection, task_id)
            requeue_task(connection, task_id)
        with pytest.raises(WaitTimeoutError):
            wait_task(bench.engine, task_id, 0)


class TestTheErrors:
    @pytest.mark.test_all
    def test_at_the_end_of_the_wait(self, bench: Bench) -> None:
        task_id = bench.create("mail.send", delay="1h")
        with pytest.raises(WaitTimeoutError) as late:
            wait_task(bench.engine, task_id, "10ms")
        assert (late.value.task_id, late.value.state) == (task_id, "PENDING")
        assert str(late.value) == (
            f"Task {task_id} (mail.send) is PENDING after a wait of 10ms. "
            "Wait again, or call explain_task to see why it is not over."
        )
        assert isinstance(late.value, TimeoutError)

    def test_an_unknown_task_is_not_waited_for(self, bench: Bench) -> None:
        with pytest.raises(UnknownTaskError, match="There is no task 4711"):
            wait_task(bench.engine, 4711, LONG)

    def test_nor_one_that_is_not_committed(self, bench: Bench) -> None:
        with Session(bench.engine) as session:
            task_id = create_task(session, "t")
            with pytest.raises(UnknownTaskError, match="Commit the transaction"):
                wait_task(bench.engine, task_id, LONG)

    @pytest.mark.test_all
    def test_a_task_pruned_meanwhile(self, bench: Bench, waiters: ThreadPoolExecutor) -> None:
        task_id = bench.create(delay="1h")
        waiting = waiters.submit(wait_task, bench.engine, task_id, LONG)
        bench.sql("DELETE FROM task_pending")
        with pytest.raises(UnknownTaskError):
            waiting.result()

    @pytest.mark.parametrize("wrong", [-1, "soon", None])
    def test_a_wrong_timeout(self, bench: Bench, wrong: Any) -> None:
        with pytest.raises(ValueError, match="timeout"):
            wait_task(bench.engine, 1, wrong)


class TestAnOpenTransaction:
    """Its own task could not start: the refusal comes at once, and the transaction goes on."""

    @pytest.mark.parametrize("kind", [Session, Engine.connect])
    def test_of_sqlalchemy(self, bench: Bench, kind: Callable[[Engine], Any]) -> None:
        with kind(bench.engine) as caller:
            task_id = create_task(caller, "t")
            said = f"A {type(caller).__name__} is in a transaction.*Commit first"
            with pytest.raises(TasksError, match=said):
                wait_task(caller, task_id, LONG)
            caller.commit()
            with pytest.raises(WaitTimeoutError):
                wait_task(caller, task_id, 0)
            assert not caller.in_transaction()

    @pytest.mark.parametrize("autocommit", [False, True])
    def test_of_psycopg(self, bench: Bench, plain: str, autocommit: bool) -> None:
        with psycopg.connect(plain, autocommit=autocommit) as raw:
            with raw.transaction():
                task_id = create_task(raw, "t")
                with pytest.raises(TasksError, match="A Connection of psycopg is in a transaction"):
                    wait_task(raw, task_id, LONG)
            with pytest.raises(WaitTimeoutError):
                wait_task(raw, task_id, 0)
            assert raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def test_what_a_session_has_loaded_stays(self, bench: Bench) -> None:
        """As after the commit before: with ``expire_on_commit=False`` nothing is read again."""
        task_id = bench.run_one(enabled=False)
        with Session(bench.engine, expire_on_commit=False) as session:
            ended: list[object] = []
            event.listen(session, "after_rollback", ended.append)
            assert wait_task(session, task_id, LONG).state == "SKIPPED"
            assert ended == []


@asynccontextmanager
async def every_kind(bench: Bench, plain: str) -> AsyncIterator[tuple[Any, ...]]:
    raw = await psycopg.AsyncConnection.connect(plain)
    async with (
        raw,
        bench.async_engine() as engine,
        AsyncSession(engine) as session,
        engine.connect() as connection,
    ):
        yield engine, session, connection, raw


class TestAsync:
    def test_each_kind(self, bench: Bench, plain: str) -> None:
        bench.succeeding()
        task_id = bench.run_one()

        async def all_of_them() -> list[str]:
            async with every_kind(bench, plain) as (engine, session, connection, raw):
                kinds = engine, session, connection, raw
                tasks = [await await_task(each, task_id, LONG) for each in kinds]
                assert not session.in_transaction()
                assert not connection.in_transaction()
                assert raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            return [task.state for task in tasks]

        assert asyncio.run(all_of_them()) == ["SUCCEEDED"] * 4

    @pytest.mark.test_all
    def test_the_loop_is_free_meanwhile(self, bench: Bench) -> None:
        """The loop turns while the waiter pauses, and in it runs what ends the wait."""
        task_id = bench.create(delay="1h")

        async def both() -> str:
            async with bench.async_engine() as engine:
                waiting = asyncio.create_task(await_task(engine, task_id, LONG))
                while not waiting.done() and awaited_by(waiting) != "sleep":
                    await asyncio.sleep(0)
                async with engine.begin() as connection:
                    await acancel_task(connection, task_id)
                return (await waiting).state

        assert asyncio.run(both()) == "CANCELLED"

    @pytest.mark.test_all
    def test_the_errors(self, bench: Bench) -> None:
        task_id = bench.create(delay="1h")

        async def late(number: int, timeout: str) -> None:
            async with bench.async_engine() as engine:
                await await_task(engine, number, timeout)

        with pytest.raises(WaitTimeoutError, match="is PENDING after a wait of 10ms"):
            asyncio.run(late(task_id, "10ms"))
        with pytest.raises(UnknownTaskError):
            asyncio.run(late(4711, LONG))

    def test_an_open_transaction(self, bench: Bench, plain: str) -> None:
        task_id = bench.create()

        async def refused() -> None:
            async with every_kind(bench, plain) as (_, session, connection, raw):
                await session.connection()
                await connection.exec_driver_sql("SELECT 1")
                await raw.execute("SELECT 1")
                for each in (session, connection, raw):
                    with pytest.raises(TasksError, match="is in a transaction"):
                        await await_task(each, task_id, LONG)

        asyncio.run(refused())


@pytest.mark.test_all
def test_it_is_idle_between_looks(bench: Bench, waiters: ThreadPoolExecutor, plain: str) -> None:
    task_id = bench.create(delay="1h")
    with psycopg.connect(plain, application_name="waiter") as raw:
        waiting: Future[Task] = waiters.submit(wait_task, raw, task_id, LONG)
        until(lambda: bench.sql(LOOKS) == 1)
        bench.do(cancel_task, task_id)
        waiting.result()


@pytest.mark.test_all
def test_nor_is_a_connection_of_the_engine_kept(bench: Bench, waiters: ThreadPoolExecutor) -> None:
    """A pool of one connection, which the waiter shares with whoever ends its wait."""
    engine = create_engine(bench.url, pool_size=1, max_overflow=0, pool_timeout=20)
    task_id = bench.create(delay="1h")
    waiting = waiters.submit(wait_task, engine, task_id, LONG)
    do(engine, cancel_task, task_id)
    assert waiting.result().state == "CANCELLED"
    engine.dispose()


def walked(span_s: float, look_s: float = 0.0) -> list[float]:
    clock, seen = Clock(), []
    for pause in pauses(span_s, clock):
        seen.append(pause)
        clock.now += pause + look_s
    return seen


class TestPauses:
    def test_they_grow_to_the_longest_and_end_with_the_span(self) -> None:
        seen = walked(30)
        assert seen[0] == FIRST_PAUSE_S
        assert seen[:-1] == sorted(seen[:-1])
        assert max(seen) == LONGEST_PAUSE_S
        assert [*accumulate(seen)][-1] == pytest.approx(30)
        assert len(seen) < 45

    def test_a_slow_look_does_not_make_the_wait_longer(self) -> None:
        assert sum(pause + 0.5 for pause in walked(10, look_s=0.5)) < 11.1

    @pytest.mark.parametrize("span_s", [0, -1])
    def test_no_time_is_one_look(self, span_s: float) -> None:
        assert walked(span_s) == []
