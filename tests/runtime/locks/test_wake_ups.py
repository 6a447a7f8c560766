"""Whoever waits is woken by the release: no test here could pass by looking now and then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import repeat
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tasks_app import locks
from tasks_app.domain.locks import LockDeniedError, LockRequest, lock_parts
from tasks_app.pool.locks.holders import release
from tasks_app.runtime.locks import lock as lock_module
from tasks_app.runtime.locks.client import Transactions
from tasks_app.runtime.locks.lock import WakeUps, acquire_locks, pauses, wake_next, wake_ups_of
from tests.clock import until
from tests.runtime.bench import Bench, effect
from tests.statements import once_after, watched

NEVER_S = 1000.0
"""Between two looks."""
LISTENING = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
      AND query = 'LISTEN tasks_app_locks' AND state = 'idle'
"""


@pytest.fixture(autouse=True)
def rare_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "pauses", lambda: repeat(NEVER_S))


class Waiter:
    """Waits in a thread for a group, and notes when it has it."""

    def __init__(self, bench: Bench, *, wait_s: float = 60.0, **group: Any) -> None:
        self.bench = bench
        self.got = threading.Event()
        self.gave_up = threading.Event()
        self.ask = LockRequest(uuid4(), lock_parts(**group), "waiter", timedelta(seconds=30))
        self._wait_s = wait_s
        bench.beside(self._wait)
        until(lambda: bench.sql("SELECT count(*) FROM task_lock_holder WHERE token = :t", **self.t))

    @property
    def t(self) -> dict[str, Any]:
        return {"t": self.ask.token}

    def _wait(self) -> None:
        begin = Transactions(self.bench.engine)
        try:
            acquire_locks(begin, self.ask, self._wait_s, 5.0)
            self.got.set()
        except LockDeniedError:
            self.gave_up.set()

    def release(self) -> None:
        with self.bench.engine.begin() as connection:
            release(connection, self.ask.token)
        wake_next(Transactions(self.bench.engine), self.ask.resources)


@pytest.fixture
def listening(bench: Bench) -> Callable[[], object]:
    return lambda: until(lambda: bench.sql(LISTENING), what="listening")


def test_a_release_wakes_the_next_in_line_and_only_it(bench: Bench, listening: Callable) -> None:
    with locks.hold(bench.engine, exclusive="a"):
        first = Waiter(bench, exclusive="a")
        second = Waiter(bench, exclusive="a")
        listening()
    assert first.got.wait(10)
    assert not second.got.is_set()
    first.release()
    assert second.got.wait(10)


@pytest.mark.test_all
def test_who_gives_up_wakes_those_behind(bench: Bench, listening: Callable) -> None:
    """A reader waits behind a writer that is denied; the other reader still holds."""
    with locks.hold(bench.engine, shared="a"):
        writer = Waiter(bench, wait_s=1.0, exclusive="a")
        reader = Waiter(bench, shared="a")
        listening()
        assert writer.gave_up.wait(10)
        assert reader.got.wait(10)


def test_a_release_as_somebody_joins_is_not_missed(bench: Bench, listening: Callable) -> None:
    """It finds nobody to wake: the one that joins has not committed, and must look once more."""
    with locks.hold(bench.engine, exclusive="b"):
        Waiter(bench, exclusive="b")
        listening()  # so that no start of it wakes the next one
    lock = locks.hold(bench.engine, exclusive="a").take()
    later = locks.hold(bench.engine, exclusive="c").take()
    other = Waiter(bench, exclusive="c")
    own, got = bench.engine.execution_options(), threading.Event()
    ask = LockRequest(uuid4(), lock_parts("a"), "waiter", timedelta(seconds=30))

    def release() -> None:
        """What it tells has been heard by the end: notices come in their order."""
        lock.release()
        later.release()
        assert other.got.wait(10)

    def wait() -> None:
        with once_after(own, "waited AS", release):
            acquire_locks(Transactions(own), ask, 60.0, 5.0)
        got.set()

    bench.beside(wait)

    assert got.wait(10)


def test_the_end_of_a_run_wakes_after_its_commit(bench: Bench, listening: Callable) -> None:
    held, go = threading.Event(), bench.event()

    @bench.handler()
    def t(ctx: Any) -> None:
        with ctx.locks(exclusive="a"):
            effect(ctx)
            held.set()
            go.wait(20)

    child = bench.child()
    task_id = bench.create()
    bench.beside(child.execute, [task_id])
    assert held.wait(10)
    waiter = Waiter(bench, exclusive="a")
    listening()
    go.set()

    assert waiter.got.wait(10)
    assert bench.effects(task_id) == 1


def test_a_release_by_commit_wakes_behind_its_block(bench: Bench, listening: Callable) -> None:
    with locks.hold(bench.engine, exclusive="a") as lock:
        waiter = Waiter(bench, exclusive="a")
        listening()
        with Session(bench.engine) as session, session.begin():
            lock.release(session)
    assert waiter.got.wait(10)


def test_nobody_who_waits_has_a_transaction_open(bench: Bench, listening: Callable) -> None:
    with locks.hold(bench.engine, exclusive="a"):
        waiter = Waiter(bench, exclusive="a")
        listening()
        until(lambda: not bench.sql(_OPEN))
    assert waiter.got.wait(10)


_OPEN = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
      AND backend_type = 'client backend'
"""


def test_who_is_told_looks_rarely(
    bench: Bench, listening: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "pauses", lambda: repeat(0.001))
    own, got = bench.engine.execution_options(), threading.Event()
    ask = LockRequest(uuid4(), lock_parts("a"), "waiter", timedelta(seconds=30))

    def wait() -> None:
        acquire_locks(Transactions(own), ask, 60.0, 5.0)
        got.set()

    with locks.hold(bench.engine, exclusive="a"), watched(own, "SELECT EXISTS") as looks:
        bench.beside(wait)
        until(lambda: looks)
        listening()
        until(lambda: wake_ups_of(own).hears)
        before = len(looks)
        for _ in range(20):
            bench.sql("SELECT 1")
        assert len(looks) <= before + 3

    assert got.wait(10)


def test_who_is_cut_off_from_wake_ups_looks(
    bench: Bench, listening: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "pauses", pauses)

    def other() -> None:
        with locks.hold(bench.engine, exclusive="a", wait="60s"):
            got.set()

    got = threading.Event()
    with locks.hold(bench.engine, exclusive="a"):
        bench.beside(other)
        listening()
        bench.sql(LISTENING.replace("count(*)", "count(pg_terminate_backend(pid))"))
        until(lambda: not bench.sql(LISTENING))
    assert got.wait(10)


def test_async_code_waits_without_holding_up_its_loop(bench: Bench) -> None:
    async def two() -> list[str]:
        seen: list[str] = []

        async def waits() -> None:
            async with locks.hold(bench.engine, exclusive="a", wait="60s"):
                seen.append("waiter")

        lock = await asyncio.to_thread(locks.hold(bench.engine, exclusive="a").take)
        waiting = asyncio.create_task(waits())
        while not await asyncio.to_thread(bench.sql, _IN_LINE):
            pass
        seen.append("holder")
        await asyncio.to_thread(lock.release)
        await waiting
        return seen

    assert asyncio.run(two()) == ["holder", "waiter"]


_IN_LINE = "SELECT count(*) FROM task_lock_holder WHERE fence IS NULL"


@pytest.mark.test_all
def test_it_stops_listening_when_nobody_waits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "IDLE_S", 0.0)
    own = engine.execution_options()

    def listens() -> bool:
        with engine.connect() as connection:
            return bool(connection.execute(text(LISTENING)).scalar())

    until(lambda: not listens(), 30)
    wake_ups = WakeUps()
    with wake_ups.expected(own, uuid4()) as told:
        assert told.wait(10)  # as soon as it listens
        assert listens()

    until(lambda: not listens())
    with wake_ups.expected(own, uuid4()) as told:
        assert told.wait(10)
