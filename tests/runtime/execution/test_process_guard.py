"""What a handler did to its process is put back before the next one, or ends the process."""

from __future__ import annotations

import contextvars
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.runtime.execution import invocation
from tasks_app.runtime.execution.invocation import BROKEN_STATUS, ProcessGuard
from tests.cases import in_one_test
from tests.clock import until
from tests.runtime.bench import Bench, effect


@pytest.fixture
def aftermath() -> Iterator[ProcessGuard]:
    made = ProcessGuard(replaceable=True)
    yield made
    made.close()


def status_of_a_fork(does: Any) -> int:
    """Fork, do it there, and return with which status the fork ended; 99: it came to the end."""
    pid = os.fork()
    if pid == 0:
        try:
            does()
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.test_all
def test_a_fork_ends_where_its_handler_does(aftermath: ProcessGuard) -> None:
    def returns() -> None:
        with aftermath:
            pass

    def raises() -> None:
        with aftermath:
            raise SystemExit(3)

    assert (status_of_a_fork(returns), status_of_a_fork(raises)) == (0, 0)


@pytest.mark.test_all
def test_descriptors_that_were_closed_end_the_process() -> None:
    def closes(again: bool) -> None:
        aftermath = ProcessGuard(replaceable=True)
        with aftermath:
            os.closerange(3, 1000)
            for _ in range(100 if again else 0):
                os.open(os.devnull, os.O_RDONLY)  # the numbers are in use again, by others

    assert status_of_a_fork(lambda: closes(again=False)) == BROKEN_STATUS
    assert status_of_a_fork(lambda: closes(again=True)) == BROKEN_STATUS


@pytest.mark.test_all
def test_a_process_without_descriptors_is_unfit() -> None:
    def exhausts() -> None:
        aftermath = ProcessGuard(replaceable=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        with aftermath:
            leaked = []
            for _ in range(200):
                try:
                    leaked.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    break
        os._exit(1 if aftermath.unfit else 2)

    assert status_of_a_fork(exhausts) == 1


def test_a_well_behaved_handler_leaves_the_process_fit(aftermath: ProcessGuard) -> None:
    with aftermath:
        pass
    assert not aftermath.unfit


def test_a_lower_recursion_limit_is_put_back_a_higher_one_stays(aftermath: ProcessGuard) -> None:
    before = sys.getrecursionlimit()
    try:
        with aftermath:
            sys.setrecursionlimit(before - 100)
        low = sys.getrecursionlimit()
        with aftermath:
            sys.setrecursionlimit(before + 100)
        high = sys.getrecursionlimit()
    finally:
        sys.setrecursionlimit(before)

    assert (low, high) == (before, before + 100)


def test_an_alarm_of_a_handlers_own_does_not_ring_in_the_next(aftermath: ProcessGuard) -> None:
    with aftermath:
        signal.setitimer(signal.ITIMER_REAL, 60)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@in_one_test("in_a_thread", [False, True])
def test_no_timer_or_limit_that_a_handler_armed_outlives_it(in_a_thread: bool) -> None:
    armed = set[str]()

    class Later:
        """In the place of ``faulthandler``, which does not tell what is armed."""

        @staticmethod
        def cancel_dump_traceback_later() -> None:
            armed.discard("dump")

    def arms() -> None:
        with guard:
            signal.setitimer(signal.ITIMER_VIRTUAL, 60, 60)
            signal.setitimer(signal.ITIMER_PROF, 60)
            armed.add("dump")
            resource.setrlimit(resource.RLIMIT_CPU, (soft, before[1]))

    before = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(time.process_time()) + 1_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(invocation, "faulthandler", Later)
        guard = ProcessGuard(replaceable=True)
        thread = threading.Thread(target=arms)
        (thread.start if in_a_thread else arms)()
        if in_a_thread:
            thread.join()
        guard.close()

    assert not any(signal.getitimer(signal.ITIMER_VIRTUAL) + signal.getitimer(signal.ITIMER_PROF))
    assert armed == set()
    assert resource.getrlimit(resource.RLIMIT_CPU) == before
    assert not guard.unfit


def test_a_profiler_keeps_the_timer_that_it_had_before() -> None:
    signal.setitimer(signal.ITIMER_PROF, 60)
    try:
        guard = ProcessGuard(replaceable=True)
        with guard:
            pass
        left, _ = signal.getitimer(signal.ITIMER_PROF)
        guard.close()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    assert left > 0


@pytest.mark.test_all
def test_an_alarm_of_a_thread_kills_nobody_and_a_lowered_hard_limit_ends_the_process() -> None:
    def rings() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        ProcessGuard(replaceable=True)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(0.3)
        os._exit(1)

    def limits() -> None:
        guard = ProcessGuard(replaceable=True)
        patch = pytest.MonkeyPatch()
        patch.setattr(resource, "setrlimit", refuses)  # as to those who are not root
        with guard:
            plain_setrlimit(resource.RLIMIT_CPU, (10_000, 10_000))
        os._exit(1 if guard.unfit else 2)

    plain_setrlimit = resource.setrlimit

    def refuses(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    assert status_of_a_fork(rings) == 1
    assert status_of_a_fork(limits) == 1


def test_a_thread_leaves_the_main_threads_alarm_alone(aftermath: ProcessGuard) -> None:
    def quietly() -> None:
        with aftermath:
            pass

    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        thread = threading.Thread(target=quietly)
        thread.start()
        thread.join()
        left, _ = signal.getitimer(signal.ITIMER_REAL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

    assert left > 0


def test_a_limit_is_raised_though_an_earlier_handler_blocked_its_signal(bench: Bench) -> None:
    @bench.handler("blocks")
    def blocks(ctx: Any) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})

    @bench.handler("slow", max_attempts=1, timeout=0.1)
    def slow(ctx: Any) -> None:
        until(lambda: False, 5)

    bench.create("blocks")
    task_id = bench.run_one("slow")
    assert "HandlerTimeoutError" in bench.error(task_id)


SEEN: contextvars.ContextVar[int] = contextvars.ContextVar("SEEN", default=0)


def test_context_variables_end_with_their_handler(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> int:
        seen = SEEN.get()
        SEEN.set(ctx.task_id)
        return seen

    ids = [bench.create() for _ in range(2)]
    bench.drain()
    assert [bench.task(task_id).result for task_id in ids] == [0, 0]


@pytest.mark.test_all
def test_a_loop_that_its_handler_stopped_is_never_resumed(bench: Bench) -> None:
    import asyncio

    @bench.handler("stops", max_attempts=1)
    async def stops(ctx: Any) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        bench.runs.append("resumed")

    @bench.handler("next")
    async def following(ctx: Any) -> None:
        await asyncio.sleep(0.1)
        await ctx.session.execute(text("SELECT 1"))

    stopped, following_id = bench.create("stops"), bench.create("next")

    bench.drain()

    assert bench.states([stopped, following_id]) == ["FAILED", "SUCCEEDED"]
    assert bench.runs == []


@pytest.mark.test_all
def test_a_fork_can_neither_use_our_connections_nor_end_them(bench: Bench) -> None:
    told, tell = os.pipe()

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        session = ctx.session
        pid = os.fork()
        if pid == 0:
            try:
                session.execute(text("INSERT INTO effect VALUES (-1, 'forked')"))
            except Exception as error:
                os.write(tell, type(error).__name__.encode())
            finally:
                session.connection().connection.driver_connection.close()
            return
        os.waitpid(pid, 0)

    task_id = bench.run_one()

    os.close(tell)
    assert os.read(told, 100) == b"OperationalError"
    os.close(told)
    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)
    assert bench.sql("SELECT count(*) FROM effect") == 1


@pytest.mark.test_all
def test_a_daemon_of_a_dead_child_does_not_hold_its_locks(bench: Bench) -> None:
    """It inherits the sockets: the server would believe that the dead one is alive."""
    bench.sql("INSERT INTO effect VALUES (0, 'to be locked')")
    daemons: list[int] = []

    def dies_leaving_a_daemon() -> None:
        from tasks_app.runtime.db.database import Database

        database = Database(bench.url)
        connection = database.handler_engine.connect()
        connection.execute(text("UPDATE effect SET note = 'locked'"))
        daemon = os.fork()
        if daemon == 0:
            time.sleep(30)
            os._exit(0)
        os.write(tell, str(daemon).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    told, tell = os.pipe()
    status_of_a_fork(dies_leaving_a_daemon)
    daemons.append(int(os.read(told, 20)))
    os.close(told)
    os.close(tell)
    try:
        bench.sql("SET LOCAL lock_timeout = '5s'; UPDATE effect SET note = 'free'")
    finally:
        os.kill(daemons[0], signal.SIGKILL)

    assert bench.sql("SELECT note FROM effect") == "free"
