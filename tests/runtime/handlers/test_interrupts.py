"""A cancel is raised inside the handler that it is for, once, and nowhere else."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import TaskCancelledError, cancel_task
from tasks_app.runtime.handlers import interrupts
from tasks_app.runtime.handlers.interrupts import PlainCall, heed_interrupts
from tasks_app.runtime.worker import housekeeper
from tests.clock import until
from tests.runtime.bench import Bench, effect

LONG_S = 20.0  # nothing that is cancelled lasts so long
ACTIVITY = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
ACTIVE = ACTIVITY + "state = 'active' AND query LIKE 'SELECT pg_sleep(21)%'"
WAITING = ACTIVITY + "wait_event_type = 'Lock'"


@pytest.fixture(autouse=True)
def _signal() -> Iterator[None]:
    """Leave the signal as other tests expect it."""
    before = signal.getsignal(interrupts.SIGNAL)
    yield
    signal.signal(interrupts.SIGNAL, before)


def busy(ctx: Any) -> None:
    ends = time.monotonic() + LONG_S
    while time.monotonic() < ends:
        pass


def busy_with_what_swallows_exceptions(ctx: Any) -> None:
    """As logging does with what a handler of it raises, and SQLAlchemy's pool."""
    ends = time.monotonic() + LONG_S
    while time.monotonic() < ends:
        with suppress(Exception):
            while time.monotonic() < ends:
                pass


def blocked(ctx: Any) -> None:
    threading.Event().wait(LONG_S)


def in_a_statement(ctx: Any) -> None:
    ctx.session.execute(text("SELECT pg_sleep(21)"))


def on_the_connection(ctx: Any) -> None:
    ctx.connection.exec_driver_sql("SELECT pg_sleep(21)")


def behind_a_commit(ctx: Any) -> None:
    ctx.commit({"kept": 1})
    in_a_statement(ctx)


async def awaiting(ctx: Any) -> None:
    await asyncio.Event().wait()


async def in_an_async_statement(ctx: Any) -> None:
    await ctx.session.execute(text("SELECT pg_sleep(21)"))


def cancel_soon(bench: Bench, task_id: int, **options: Any) -> None:
    """Cancel it, from beside, when its handler has begun."""

    def cancel() -> None:
        until(lambda: bool(bench.runs), LONG_S)
        bench.do(cancel_task, task_id, **options)

    bench.beside(cancel)


def noting(bench: Bench, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the same as a handler that says when it begins, and what it gets."""

    def plain(ctx: Any) -> Any:
        effect(ctx)
        bench.runs.append("began")
        try:
            return function(ctx)
        except BaseException as error:
            bench.runs.append(type(error))
            raise

    async def coroutine(ctx: Any) -> Any:
        bench.runs.append("began")
        try:
            return await function(ctx)
        except BaseException as error:
            bench.runs.append(type(error))
            raise

    return coroutine if asyncio.iscoroutinefunction(function) else plain


@pytest.mark.parametrize(
    "function",
    [
        *(busy, busy_with_what_swallows_exceptions, blocked, in_a_statement),
        *(on_the_connection, behind_a_commit),
    ],
)
def test_a_plain_handler_of_the_main_thread_is_interrupted(
    bench: Bench, function: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    bench.handler()(noting(bench, function))
    task_id = bench.create()
    cancel_soon(bench, task_id)
    began = time.monotonic()

    bench.execute([task_id])

    assert time.monotonic() - began < LONG_S / 4
    task = bench.task(task_id)
    assert (task.state, task.error) == (
        "CANCELLED",
        "TaskCancelledError: The task was cancelled while it ran.",
    )
    assert bench.runs == ["began", TaskCancelledError]
    assert bench.effects(task_id) == (function is behind_a_commit)
    until(lambda: bench.sql(ACTIVE) == 0, 2, "the statement's end")
    assert "Traceback" not in caplog.text


def in_a_thread(bench: Bench, child: Any, ids: list[int]) -> None:
    """Carry out a message in another thread than the main one, to the end."""
    thread = bench.beside(child.execute, ids)
    thread.join(LONG_S / 2)
    assert not thread.is_alive()


@pytest.mark.parametrize("function", [busy, in_a_statement, on_the_connection])
def test_a_plain_handler_of_another_thread_is_interrupted(
    bench: Bench, function: Callable[[Any], Any]
) -> None:
    """Also in a statement: there psycopg looks around ten times a second."""
    bench.handler()(noting(bench, function))
    task_id = bench.create()
    cancel_soon(bench, task_id)

    in_a_thread(bench, bench.child(), [task_id])

    until(lambda: bench.state(task_id) == "CANCELLED", 5)
    assert bench.runs == ["began", TaskCancelledError]
    assert bench.effects(task_id) == 0
    until(lambda: bench.sql(ACTIVE) == 0, 2, "the statement's end")


@pytest.mark.parametrize("function", [awaiting, in_an_async_statement])
def test_a_coroutine_is_cancelled_at_its_await(
    bench: Bench, function: Callable[[Any], Any]
) -> None:
    bench.handler()(noting(bench, function))
    task_id = bench.create()
    cancel_soon(bench, task_id)

    in_a_thread(bench, bench.child(), [task_id])

    until(lambda: bench.state(task_id) == "CANCELLED", 5)
    assert bench.error(task_id).startswith("TaskCancelledError: ")
    assert bench.runs == ["began", asyncio.CancelledError]
    until(lambda: bench.sql(ACTIVE) == 0, 2, "the statement's end")


def test_a_handler_that_swallows_it_goes_on_and_gets_no_other(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append("began")
        try:
            busy(ctx)
        except TaskCancelledError:
            bench.do(cancel_task, ctx.task_id)
            looks = watch_of(child)._look_at
            until(lambda: watch_of(child)._look_at > looks, 5, "the next look")
            effect(ctx)

    task_id = bench.create()
    cancel_soon(bench, task_id)
    child = bench.child()
    child.execute([task_id])
    child.stop()

    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)


def test_after_a_statement_that_ended_so_the_handler_may_roll_back_and_go_on(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append("began")
        try:
            in_a_statement(ctx)
        except TaskCancelledError:
            ctx.session.rollback()
            effect(ctx)

    task_id = bench.create()
    cancel_soon(bench, task_id)

    bench.execute([task_id])

    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)


def test_one_that_cannot_be_cancelled_is_only_told(bench: Bench) -> None:
    @bench.handler(cancellable=False)
    def h(ctx: Any) -> None:
        bench.runs.append("began")
        until(lambda: ctx.cancelled, 5)
        effect(ctx)

    task_id = bench.create()
    cancel_soon(bench, task_id, kill_after=timedelta(0))

    bench.execute([task_id])

    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)


def test_at_most_once_ends_cancelled_too(bench: Bench) -> None:
    bench.handler(at_most_once=True)(noting(bench, busy))
    task_id = bench.create()
    cancel_soon(bench, task_id)

    bench.execute([task_id])

    assert bench.state(task_id) == "CANCELLED"


def test_what_a_handler_raises_instead_does_not_bring_its_task_back(bench: Bench) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        bench.runs.append("began")
        try:
            busy(ctx)
        finally:
            raise LookupError

    task_id = bench.create()
    cancel_soon(bench, task_id)

    bench.execute([task_id])

    task = bench.task(task_id)
    assert (task.state, task.error, bench.runs) == ("CANCELLED", "LookupError", ["began"])


class TestAtTheEnd:
    """Interleavings, step by step: the cancel comes as the handler is left."""

    def test_what_comes_too_late_is_refused(self) -> None:
        call = PlainCall(threading.current_thread())
        with call:
            pass
        assert not call.interrupt()

    def test_a_signal_that_comes_too_late_raises_nothing(self) -> None:
        """It was sent in time, and the handler of signals is called when the next run began."""
        heed_interrupts()
        before, after = (PlainCall(threading.current_thread()) for _ in range(2))
        signal.pthread_sigmask(signal.SIG_BLOCK, {interrupts.SIGNAL})
        with before:
            assert before.interrupt()
        went_on = False
        with suppress(TaskCancelledError), after:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {interrupts.SIGNAL})
            went_on = True
        assert went_on

    def test_what_was_set_in_a_thread_is_taken_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may not be raised yet when the handler is left."""
        done: list[tuple[int, object]] = []
        monkeypatch.setattr(interrupts, "_set_exception", lambda *what: done.append(what))
        signal.signal(interrupts.SIGNAL, signal.SIG_IGN)  # so it goes the way of other threads
        call = PlainCall(threading.current_thread())
        with call:
            assert call.interrupt()
        own = threading.get_ident()
        assert done == [(own, TaskCancelledError), (own, interrupts._NOTHING)]

    def test_leaving_waits_for_the_interruption(self) -> None:
        call = PlainCall(threading.current_thread())
        left = threading.Event()

        def leave() -> None:
            with call:
                pass
            left.set()

        thread = threading.Thread(target=leave)
        with call._lock:
            thread.start()
            assert not left.wait(0.05)
        assert left.wait(5)
        thread.join()


@pytest.mark.parametrize("commits", [True, False])
def test_a_cancel_that_meets_a_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    """One of the handler's is broken off and undone; the run's own is not touched."""
    monkeypatch.setattr(housekeeper, "CANCEL_LOOK_S", 0.0)
    holder = bench.engine.connect()
    bench.at_end(holder.close)

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        bench.do(cancel_task, ctx.task_id)
        holder.execute(text("SELECT FROM task_pending FOR UPDATE"))
        bench.beside(look_and_let_go)
        if commits:
            ctx.commit()

    def look_and_let_go() -> None:
        until(lambda: bench.sql(WAITING) == 1, 5, "a COMMIT that waits")
        child.housekeeper.cancels.interrupt_cancelled()
        holder.rollback()

    task_id, child = bench.create(), bench.child(start=False)
    child.execute([task_id])
    child.stop()

    ends = ("CANCELLED", 0) if commits else ("SUCCEEDED", 1)
    assert (bench.state(task_id), bench.effects(task_id)) == ends


def watch_of(child: Any) -> Any:
    return child.housekeeper.cancels
