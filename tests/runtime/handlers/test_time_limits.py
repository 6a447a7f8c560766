"""Time limits: raised inside the handler and nowhere else."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import HandlerTimeoutError
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.runtime.handlers.time_limits import check_hard_limit, time_limit
from tests.clock import until
from tests.runtime.bench import Bench, effect
from tests.runtime.handler_db.twins import twin

pytestmark = [
    pytest.mark.timeout(60, method="thread"),  # the alarm is ours here
    # SQLAlchemy 2.0 leaves a connection to the collector if a limit ends its first statements
    pytest.mark.filterwarnings("ignore:Exception ignored in. <function BaseConnection.__del__"),
]


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    """Leave the alarm clock as other tests expect it."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def busy(seconds: float = 20) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


def test_no_worker_starts_with_a_timeout_that_never_comes() -> None:
    hour = timedelta(hours=1)
    patient = HandlerSpec("patient", print, timeout=2 * hour)
    for specs, timeout, hard, said in (
        ([patient], None, hour, "timeout of patient is 2h, longer than the hard limit, 1h,"),
        ([], 2 * hour, hour, "TASKS_APP_TIMEOUT is 2h, longer than the hard limit, 1h,"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            check_hard_limit(specs, timeout, hard)
    check_hard_limit([replace(patient, hard_timeout=2 * hour)], hour, hour)
    check_hard_limit([patient], None, 3 * hour)


def slow_spec(name: str, *, is_async: bool) -> HandlerSpec:
    """A handler that is stopped by a KeyError."""

    async def waiting(ctx: Any) -> None:
        await asyncio.sleep(20)

    return HandlerSpec(
        name,
        waiting if is_async else lambda ctx: busy(),
        max_attempts=1,
        timeout=timedelta(milliseconds=50),
        takes_payload=False,
        is_async=is_async,
        timeout_error=KeyError,
    )


def test_an_alarm_that_another_thread_has_set_is_not_its_own() -> None:
    """A process has one alarm. Whoever sets it beside this limit ends no run by that."""
    with time_limit(60):
        signal.raise_signal(signal.SIGALRM)
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < left_s <= 60


class TestSync:
    def test_a_busy_handler_is_interrupted_and_charged(self, bench: Bench) -> None:
        @bench.handler(timeout="50ms", retry="1h")
        def h(ctx: Any) -> None:
            effect(ctx)
            busy()

        task_id = bench.execute_one()
        task = bench.task(task_id)
        assert (task.state, task.failures, bench.effects(task_id)) == ("PENDING", 1, 0)
        assert bench.attempts(task_id)[0].kind == "HandlerTimeoutError"

    @pytest.mark.test_all
    def test_a_handler_may_have_another_exception_for_it(self, bench: Bench) -> None:
        """For code that catches the one of another library."""
        for name, is_async in (("t", False), ("a", True)):
            bench.registry.add(slow_spec(name, is_async=is_async))
        ids = [bench.create("t"), bench.create("a")]
        bench.execute(ids)
        assert [bench.task(task_id).error for task_id in ids] == ["KeyError: 0.05"] * 2

    @pytest.mark.test_all
    def test_a_statement_that_runs_in_the_database_is_interrupted(self, bench: Bench) -> None:
        @bench.handler(timeout="100ms", max_attempts=1)
        def h(ctx: Any) -> None:
            effect(ctx)
            ctx.session.execute(text("SELECT pg_sleep(20)"))

        task_id = bench.create()
        began = time.monotonic()

        bench.execute([task_id])

        assert bench.state(task_id) == "FAILED"
        assert "HandlerTimeoutError" in bench.error(task_id)
        assert time.monotonic() - began < 5
        sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(20)'"
        until(lambda: bench.sql(f"{sleeping} AND state = 'active'") == 0)

    def test_on_error_may_have_a_rule_for_it(self, bench: Bench) -> None:
        @bench.handler(timeout="50ms", on_error={HandlerTimeoutError: "fail"})
        def h(ctx: Any) -> None:
            busy()

        task_id = bench.execute_one()
        assert bench.state(task_id) == "FAILED"

    @pytest.mark.test_all
    def test_a_handler_that_catches_it_may_succeed_with_its_effects(self, bench: Bench) -> None:
        @bench.handler(timeout="500ms")
        def h(ctx: Any) -> str:
            effect(ctx)
            try:
                busy()
            except TimeoutError:
                return "in time after all"
            return "never"

        task_id = bench.execute_one()
        assert bench.task(task_id).result == "in time after all"
        assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)

    def test_it_never_fires_after_the_handler_returned(self, bench: Bench) -> None:
        """The commit takes far longer than the limit: a lock on the row holds it up."""
        locked = threading.Event()

        @bench.handler(timeout="1s")
        def h(ctx: Any) -> str:
            effect(ctx)
            bench.beside(hold)
            assert locked.wait(5)
            return "done"

        def hold() -> None:
            with bench.engine.begin() as user:
                user.execute(text("SELECT FROM task_pending FOR UPDATE"))
                locked.set()
                user.execute(text("SELECT pg_sleep(1.4)"))

        task_id = bench.execute_one()

        assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)

    @pytest.mark.parametrize("is_async", [False, True])
    def test_who_swallows_a_broken_statement_fails(self, bench: Bench, is_async: bool) -> None:
        def h(ctx: Any) -> None:
            with suppress(TimeoutError, asyncio.CancelledError):
                ctx.session.execute(text("SELECT pg_sleep(20)"))

        # Longer than the way to the statement: who swallows a limit before it has succeeded.
        bench.handler(timeout="1s", max_attempts=1)(twin(h, is_async=is_async))
        task_id = bench.execute_one()
        assert bench.error(task_id).startswith("HandlerTimeoutError: ")

    @pytest.mark.test_all
    def test_the_next_task_has_its_whole_time(self, bench: Bench) -> None:
        @bench.handler(timeout="300ms")
        def h(ctx: Any) -> float:
            until(lambda: ctx.remaining < 0.1)
            return 1

        ids = [bench.create() for _ in range(4)]
        bench.execute(ids)
        assert bench.states(ids) == ["SUCCEEDED"] * 4

    def test_a_library_that_took_the_alarm_disarms_no_later_limit(self, bench: Bench) -> None:
        @bench.handler("taker")
        def take(ctx: Any) -> None:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)

        @bench.handler("slow", timeout="50ms", max_attempts=1)
        def slow(ctx: Any) -> None:
            busy(5)

        ids = [bench.create("slow"), bench.create("taker"), bench.create("slow")]
        bench.execute(ids)
        assert bench.states(ids) == ["FAILED", "SUCCEEDED", "FAILED"]


class TestAsync:
    @pytest.mark.test_all
    def test_a_waiting_handler_is_cancelled_and_charged(self, bench: Bench) -> None:
        @bench.handler(timeout="50ms", retry="1h")
        async def h(ctx: Any) -> None:
            await ctx.session.execute(text("SELECT 1"))
            await asyncio.sleep(20)

        task_id = bench.execute_one()
        task = bench.task(task_id)
        assert (task.state, task.failures) == ("PENDING", 1)
        assert bench.attempts(task_id)[0].kind == "HandlerTimeoutError"

    @pytest.mark.test_all
    def test_a_timeout_of_its_own_is_not_taken_for_the_limit(self, bench: Bench) -> None:
        @bench.handler(timeout="1h", max_attempts=1)
        async def h(ctx: Any) -> None:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(20)

        task_id = bench.execute_one()
        assert bench.task(task_id).error == "TimeoutError"

    def test_a_handler_that_is_cancelled_by_its_own_code_is_charged(self, bench: Bench) -> None:
        @bench.handler(max_attempts=1)
        async def h(ctx: Any) -> None:
            raise asyncio.CancelledError

        task_id = bench.execute_one()
        assert bench.state(task_id) == "PENDING", "perhaps another's handler did it"
        bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
        bench.execute([task_id])
        assert bench.state(task_id) == "FAILED"

    def test_session_effects_and_outcome_are_one_commit(self, bench: Bench) -> None:
        @bench.handler()
        async def h(ctx: Any) -> str:
            await ctx.session.execute(
                text("INSERT INTO effect (task_id) VALUES (:id)"), {"id": ctx.task_id}
            )
            return "ok"

        ids = [bench.create() for _ in range(3)]
        bench.drain()
        assert bench.states(ids) == ["SUCCEEDED"] * 3
        assert [bench.effects(i) for i in ids] == [1, 1, 1]

    def test_connection_says_how_it_is_had_in_async_handlers(self, bench: Bench) -> None:
        @bench.handler(max_attempts=1)
        async def h(ctx: Any) -> None:
            _ = ctx.connection

        task_id = bench.execute_one()
        assert "await ctx.session.connection()" in bench.error(task_id)


class TestTheAlarmItself:
    def test_nothing_rings_behind_a_block_that_ended_in_time(self) -> None:
        with time_limit(0.05):
            pass
        busy(0.1)

    def test_outside_the_main_thread_nothing_is_raised(self, bench: Bench) -> None:
        done = threading.Event()

        def run() -> None:
            with time_limit(0.01):
                busy(0.05)
            done.set()

        bench.beside(run).join(5)
        assert done.is_set()

    def test_a_limit_of_a_tasks_own_that_does_nothing_is_said_once(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench.succeeding()
        ids = [bench.create(timeout="1s", hard_timeout="1m") for _ in range(3)]
        child = bench.child()
        bench.beside(child.execute, ids).join(10)
        said = [m for m in caplog.messages if "has its own" in m]
        assert bench.states(ids) == ["SUCCEEDED"] * 3
        assert len(said) == 1
        assert "its own timeout and hard_timeout" in said[0]
