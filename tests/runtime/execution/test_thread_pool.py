"""Further threads of a child that carries out messages."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from tasks_app.runtime.execution.in_flight import InFlight
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.runner import Runner
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.worker.child import Child
from tests.clock import until
from tests.runtime.bench import Bench, effect, warm

pytestmark = pytest.mark.timeout(60, method="thread")


LANES = pytest.mark.parametrize("lane", ["a message", "the pool"])


def run(bench: Bench, lane: str, ids: list[int], threads: int) -> None:
    if lane == "a message":
        bench.execute(ids, extra_threads=threads - 1)
    else:
        bench.drain(concurrency=threads)


@LANES
def test_the_threads_of_a_child_run_tasks_at_a_time(bench: Bench, lane: str) -> None:
    together = threading.Barrier(4)

    @bench.handler()
    def h(ctx: Any) -> str:
        together.wait(10)
        return threading.current_thread().name

    ids = [bench.create() for _ in range(8)]

    run(bench, lane, ids, threads=4)

    assert bench.states(ids) == ["SUCCEEDED"] * 8
    names = {bench.task(task_id).result for task_id in ids}
    assert len(names) == 4
    assert threading.current_thread().name in names


def test_each_has_a_transaction_of_its_own(bench: Bench) -> None:
    together = threading.Barrier(4)

    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict) -> None:
        effect(ctx)
        together.wait(10)
        if payload["bad"]:
            raise ValueError

    ids = [bench.create(payload={"bad": n % 2 == 1}) for n in range(8)]

    bench.execute(ids, extra_threads=3)

    assert bench.states(ids) == ["SUCCEEDED", "FAILED"] * 4
    assert [bench.effects(task_id) for task_id in ids] == [1, 0] * 4


@LANES
def test_limits_are_raised_in_the_main_thread_alone(bench: Bench, lane: str) -> None:
    @bench.handler("limited", timeout="200ms", max_attempts=1)
    def limited(ctx: Any) -> str:
        if ctx.task_id == over:
            until(lambda: False, 5)
        return threading.current_thread().name

    bench.succeeding("free")
    ids = [bench.create("limited") for _ in range(3)]
    over = bench.create("limited")
    free = [bench.create("free") for _ in range(10)]

    run(bench, lane, [*ids, over, *free], threads=3)

    main = threading.current_thread().name
    assert [bench.task(task_id).result for task_id in ids] == [main] * 3
    assert bench.state(over) == "FAILED"
    assert "HandlerTimeoutError" in bench.error(over)
    assert bench.states(free) == ["SUCCEEDED"] * 10


def test_a_message_ends_when_the_last_of_its_threads_has(bench: Bench) -> None:
    go_on, slow = bench.event(), threading.Event()

    @bench.handler()
    def h(ctx: Any, payload: dict) -> None:
        if payload["slow"] and threading.current_thread() is not carrier:
            slow.set()
            go_on.wait(20)
        elif payload["slow"]:
            slow.wait(20)

    ids = [bench.create(payload={"slow": n < 2}) for n in range(6)]
    child = bench.child(extra_threads=1)
    carrier = bench.beside(child.execute, ids)
    until(lambda: bench.states(ids[2:]) == ["SUCCEEDED"] * 4)

    carrier.join(0.2)
    waits = carrier.is_alive()
    go_on.set()
    carrier.join(10)

    assert waits
    assert bench.states(ids) == ["SUCCEEDED"] * 6


def test_what_waits_behind_slow_ones_goes_back_when_all_threads_are_busy(bench: Bench) -> None:
    go_on = bench.event()

    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        go_on.wait(20)

    ids = [bench.create() for _ in range(6)]
    child = bench.child(extra_threads=1, give_back_after=0.1)
    for _ in range(40):
        child.executor.run_times.learn("t", 0.0)  # so that it claims all of them
        child.executor.run_times.next_group(500)
    thread = bench.beside(child.execute, ids)
    until(lambda: len(bench.runs) == 2)

    until(lambda: bench.states(ids).count("PENDING") == 4)
    go_on.set()
    thread.join(10)

    assert bench.states(ids).count("SUCCEEDED") >= 2


def test_nothing_more_starts_in_any_thread_when_the_worker_drains(bench: Bench) -> None:
    go_on = bench.event()

    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        go_on.wait(20)

    ids = [bench.create() for _ in range(6)]
    child = bench.child(extra_threads=1)
    thread = bench.beside(child.execute, ids)
    until(lambda: len(bench.runs) == 2)

    bench.slots.drain()
    until(child.inflight.stopping.is_set)
    go_on.set()
    thread.join(10)
    child.stop()

    assert sorted(bench.states(ids)) == ["PENDING"] * 4 + ["SUCCEEDED"] * 2


def test_a_claim_is_for_all_threads(bench: Bench) -> None:
    bench.succeeding()
    child = bench.child(extra_threads=3, together=False)
    for _ in range(3):
        child.executor.run_times.learn("t", 0.1)
        child.executor.next_group()
    assert child.executor.next_group() == 8  # 0.2 s of work for each


def carried(child: Child, lane: str, task_id: int) -> None:
    if lane == "threads":
        child.executor.threads.start()
        child.executor.fetcher.claim([task_id])
    else:
        with suppress(MemoryError):
            child.execute([task_id])
    until(lambda: child.inflight.empty)


@pytest.mark.parametrize("lane", ["plain", "fast", "threads", "async"])
def test_whichever_way_a_run_is_left_it_ends_or_goes_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    """An error of ours breaks it off; then the lane carries out another."""

    async def waits(ctx: Any) -> int:
        return ctx.attempt

    def works(ctx: Any) -> int:
        return ctx.attempt

    def breaks(*_: object, **__: object) -> None:
        raise MemoryError

    bench.handler(retry="1h")(waits if lane == "async" else works)
    child = bench.child(extra_threads=int(lane == "threads"), together=lane != "plain")
    if lane == "fast":
        warm(child)
    for part, name in (
        (Runner, "_start"),
        (Runner, "_learn"),
        (Runner, "attempt"),
        (TaskContext, "__init__"),
        (Invocation, "make"),
        (InFlight, "collect"),
    ):
        task_id = bench.create()
        with monkeypatch.context() as patch:
            patch.setattr(part, name, breaks)
            carried(child, lane, task_id)
        after = bench.create()
        carried(child, lane, after)

        task = bench.task(task_id)
        way = f"{part.__name__}.{name}"
        assert (task.state.value, task.failures > 0) in {
            ("PENDING", False),
            ("PENDING", True),
            ("SUCCEEDED", False),
        }, way
        assert bench.state(after) == "SUCCEEDED", way
