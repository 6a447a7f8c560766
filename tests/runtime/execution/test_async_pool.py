"""The async pool: many async handlers at a time in one event loop, each a unit of its own."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.domain.handlers.settlement import ABORTED
from tasks_app.runtime.execution import invocation, pools
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.reaper import Reaper
from tests.clock import eventually, until
from tests.factory import some
from tests.runtime.bench import EFFECT, NOW_DUE, QUEUE, Bench
from tests.runtime.mortal import forked


class Aboard:
    """How many runs overlap."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


class Watched(dict[Any, Any]):
    """The tasks of a loop; the housekeeper looks whenever one is added."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def __setitem__(self, task: Any, run: Any) -> None:
        self._look()
        super().__setitem__(task, run)


def test_a_run_is_owned_from_its_start_on(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Else the housekeeper would give it back while it runs."""

    @bench.handler()
    async def h(ctx: Any) -> None: ...

    child = bench.child()
    child.executor.async_pool._tasks = Watched(child.inflight.return_unowned)
    task_id = bench.create()
    child.execute([task_id])
    assert bench.state(task_id) == "SUCCEEDED"
    assert "nothing has ended its run" not in caplog.text


@pytest.mark.test_all
def test_as_many_run_at_a_time_as_there_are_places(bench: Bench) -> None:
    aboard = Aboard()

    @bench.handler()
    async def h(ctx: Any) -> None:
        with aboard:
            await eventually(lambda: aboard.most == 40)

    ids = [bench.create() for _ in range(40)]
    bench.execute(ids, async_concurrency=40)
    assert bench.states(ids) == ["SUCCEEDED"] * 40


@pytest.mark.test_all
def test_never_more_than_that_and_free_places_are_filled_from_the_message(bench: Bench) -> None:
    aboard = Aboard()

    @bench.handler()
    async def h(ctx: Any) -> None:
        with aboard:
            await asyncio.sleep(0.002)

    ids = [bench.create() for _ in range(60)]
    bench.execute(ids, async_concurrency=7)
    assert bench.states(ids) == ["SUCCEEDED"] * 60
    assert aboard.most == 7


@pytest.mark.test_all
def test_while_one_of_the_message_still_runs_others_come_from_the_pool(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any, payload: dict) -> None:
        bench.runs.append(ctx.task_id)
        await eventually(lambda: len(bench.runs) == 3)

    first = bench.create()
    others = [bench.create() for _ in range(2)]
    bench.execute([first])
    assert bench.states([first, *others]) == ["SUCCEEDED"] * 3


@pytest.mark.test_all
def test_the_thread_of_the_message_sleeps_while_there_is_room(bench: Bench) -> None:
    """One that looks again and again would take the event loop's time."""

    @bench.handler()
    async def h(ctx: Any) -> None:
        await asyncio.sleep(1)

    child = bench.child()
    ids = [bench.create() for _ in range(3)]
    began, began_at = time.thread_time(), time.monotonic()

    child.execute(ids)

    used_s, lasted_s = time.thread_time() - began, time.monotonic() - began_at
    assert lasted_s >= 1
    assert used_s < lasted_s / 4


def test_a_plain_handler_runs_beside_async_ones(bench: Bench) -> None:
    ran = threading.Event()

    @bench.handler("async")
    async def waits(ctx: Any) -> None:
        await eventually(ran.is_set)

    @bench.handler("plain")
    def plain(ctx: Any) -> str:
        ran.set()
        return threading.current_thread().name

    ids = [bench.create("async"), bench.create("plain")]

    bench.execute(ids)

    assert bench.states(ids) == ["SUCCEEDED"] * 2
    assert bench.task(ids[1]).result == threading.current_thread().name


@pytest.mark.test_all
def test_each_has_a_transaction_of_its_own_on_few_connections(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    async def h(ctx: Any, payload: dict) -> None:
        await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
        await asyncio.sleep(0.005)
        if payload["bad"]:
            raise ValueError

    ids = [bench.create(payload={"bad": n % 2 == 1}) for n in range(30)]
    bench.execute(ids, async_connections=3)
    assert bench.states(ids) == ["SUCCEEDED", "FAILED"] * 15
    assert [bench.effects(task_id) for task_id in ids] == [1, 0] * 15


@pytest.mark.test_all
def test_the_limit_of_one_does_not_touch_its_neighbours(bench: Bench) -> None:
    @bench.handler("limited", timeout="50ms", max_attempts=1)
    async def limited(ctx: Any) -> None:
        await asyncio.sleep(20)

    @bench.handler("free")
    async def free(ctx: Any) -> None:
        await asyncio.sleep(0.2)

    ids = [bench.create(name) for name in ("limited", "free", "limited")]
    bench.execute(ids)
    assert bench.states(ids) == ["FAILED", "SUCCEEDED", "FAILED"]


@pytest.mark.test_all
def test_who_is_cancelled_learns_of_it_while_others_go_on(bench: Bench) -> None:
    from tasks_app import cancel_task

    @bench.handler(cancellable=False)
    async def h(ctx: Any) -> str:
        bench.runs.append(ctx.task_id)
        if ctx.task_id == ids[0]:
            await eventually(lambda: ctx.cancelled)
            return "stopped"
        await eventually(lambda: 0 in bench.runs)
        return "done"

    ids = [bench.create() for _ in range(2)]
    thread = bench.beside(lambda: bench.execute(ids, lease=0.5))
    until(lambda: len(bench.runs) == 2)
    bench.do(cancel_task, ids[0])
    until(lambda: bench.state(ids[0]) == "SUCCEEDED")
    bench.runs.append(0)
    thread.join(10)

    assert [bench.task(task_id).result for task_id in ids] == ["stopped", "done"]


NOTE: contextvars.ContextVar[int] = contextvars.ContextVar("NOTE")


def test_middleware_surrounds_each_run_while_the_others_go_on(bench: Bench) -> None:
    open_, seen = Aboard(), []

    def layer(ctx: Any, call: Callable[[], Any]) -> Any:
        NOTE.set(ctx.task_id)
        with open_:
            result = call()
        seen.append((ctx.task_id, NOTE.get(), result))
        return result

    @bench.handler()
    async def h(ctx: Any) -> int:
        await eventually(lambda: open_.most == 5)
        return NOTE.get()

    ids = [bench.create() for _ in range(5)]
    middleware: list[Middleware] = [layer]
    child = Child(
        bench.settings(), bench.registry, bench.slots, queues=(QUEUE,), middleware=middleware
    )
    child.start()

    child.execute(ids)
    child.stop()

    assert sorted(seen) == [(task_id, task_id, task_id) for task_id in ids]


@pytest.mark.test_all
def test_a_task_that_runs_alone_does(bench: Bench) -> None:
    aboard, alone = Aboard(), []

    @bench.handler("others")
    async def others(ctx: Any) -> None:
        with aboard:
            await asyncio.sleep(0.05)

    @bench.handler("once", at_most_once=True)
    async def once(ctx: Any) -> None:
        with aboard:
            alone.append(aboard.now)
            await asyncio.sleep(0.05)
            alone.append(aboard.now)

    ids = [bench.create("others" if n % 3 else "once") for n in range(9)]

    bench.execute(ids)

    assert bench.states(ids) == ["SUCCEEDED"] * 9
    assert set(alone) == {1}


class TestWhatOneDoesToTheLoop:
    @pytest.mark.test_all
    def test_who_keeps_it_from_the_others_is_named_once(
        self, bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tasks_app.runtime.execution.pools.BLOCKED_S", 0.05)

        @bench.handler("blocks")
        async def blocks(ctx: Any) -> None:
            begin = len(said())
            if not begin:
                until(said)
            else:
                time.sleep(0.6)

        def said() -> list[str]:
            return [r.getMessage() for r in caplog.records if "event loop" in r.getMessage()]

        ids = [bench.create("blocks") for _ in range(2)]
        with caplog.at_level(logging.WARNING):
            bench.execute(ids)

        assert bench.states(ids) == ["SUCCEEDED"] * 2
        (line,) = said()
        assert line.startswith("handler blocks has kept the event loop from all others for")

    def test_the_lease_is_renewed_while_it_is_blocked(self, bench: Bench) -> None:
        @bench.handler()
        async def h(ctx: Any) -> int:
            before = bench.task(ctx.task_id).lease_until
            until(lambda: bench.task(ctx.task_id).lease_until > before)
            return ctx.attempt

        task_id = bench.create()
        bench.execute([task_id], lease=0.5)
        assert bench.task(task_id).result == 1

    @pytest.mark.test_all
    @pytest.mark.parametrize("what", ["the loop", "its executor"])
    def test_nobody_can_stop_it(self, bench: Bench, what: str) -> None:
        @bench.handler("stops", max_attempts=1)
        async def stops(ctx: Any) -> None:
            loop = asyncio.get_running_loop()
            if what == "the loop":
                loop.stop()
            await loop.shutdown_default_executor()

        @bench.handler("others")
        async def others(ctx: Any) -> None:
            await asyncio.sleep(0.05)
            await asyncio.to_thread(int)

        ids = [bench.create("others"), bench.create("stops"), bench.create("others")]

        bench.execute(ids)

        assert bench.states(ids) == ["SUCCEEDED", "FAILED", "SUCCEEDED"]

    @pytest.mark.test_all
    def test_an_exit_in_a_task_of_a_handlers_own_does_not_end_it(self, bench: Bench) -> None:
        @bench.handler("exits")
        async def exits(ctx: Any) -> str:
            async def leave() -> None:
                raise SystemExit(1)

            with pytest.raises(SystemExit):
                await asyncio.create_task(leave())
            return "here"

        @bench.handler("others")
        async def others(ctx: Any) -> None:
            await asyncio.sleep(0.05)

        ids = [bench.create("others"), bench.create("exits"), bench.create("others")]

        bench.execute(ids)

        assert bench.states(ids) == ["SUCCEEDED"] * 3

    @pytest.mark.parametrize(
        ("behind_its_end", "end"), [(False, ("FAILED", 0)), (True, ("SUCCEEDED", 1))]
    )
    def test_a_cancellation_left_pending_does_not_hit_the_commit(
        self, bench: Bench, behind_its_end: bool, end: tuple[str, int]
    ) -> None:
        @bench.handler(max_attempts=1)
        async def h(ctx: Any) -> None:
            await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
            cancel = some(asyncio.current_task()).cancel
            asyncio.get_running_loop().call_soon(cancel) if behind_its_end else cancel()

        task_id = bench.execute_one()
        bench.sql(NOW_DUE)
        bench.execute([task_id])  # alone, so that nobody else can have sent it
        assert (bench.state(task_id), bench.effects(task_id)) == end
        assert ("CancelledError" in bench.error(task_id)) == (end[0] == "FAILED")


def held(bench: Bench) -> threading.Event:
    """Declare a handler that runs until the event is set."""
    go_on = bench.event()

    @bench.handler()
    async def h(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        await eventually(go_on.is_set)

    return go_on


class TestStopping:
    @pytest.mark.test_all
    def test_nothing_more_starts_and_what_runs_may_end(self, bench: Bench) -> None:
        go_on = held(bench)
        ids = [bench.create() for _ in range(5)]
        child = bench.child(async_concurrency=2)
        thread = bench.beside(child.execute, ids)
        until(lambda: len(bench.runs) == 2)

        bench.slots.drain()
        until(child.inflight.stopping.is_set)
        go_on.set()
        thread.join(10)
        child.stop()

        assert sorted(bench.states(ids)) == ["PENDING"] * 3 + ["SUCCEEDED"] * 2

    @pytest.mark.test_all
    def test_a_worker_without_a_broker_waits_for_them_too(self, bench: Bench) -> None:
        go_on = held(bench)
        ids = [bench.create() for _ in range(3)]
        work = bench.work()
        thread = bench.beside(work.run)
        until(lambda: len(bench.runs) == 3)

        work.child.inflight.stop()
        thread.join(0.2)
        waits = thread.is_alive()
        go_on.set()
        thread.join(10)
        bench.children[-1].stop()

        assert waits
        assert bench.states(ids) == ["SUCCEEDED"] * 3


@pytest.mark.test_all
def test_the_rest_of_a_message_goes_back_when_all_places_are_taken_for_long(bench: Bench) -> None:
    go_on = held(bench)
    ids = [bench.create() for _ in range(5)]
    child = bench.child(async_concurrency=2, give_back_after=0.05)
    thread = bench.beside(child.execute, ids)
    until(lambda: len(bench.runs) == 2)

    until(lambda: len(child.inflight._gave_back) == 1)
    taken = len(child.inflight.held())
    go_on.set()
    thread.join(10)

    assert taken == 2
    assert child.inflight.empty


@pytest.mark.test_all
@pytest.mark.parametrize("number", [20, 5000])
def test_a_killed_childs_runs_are_all_known_and_uncharged(bench: Bench, number: int) -> None:
    @bench.handler()
    async def h(ctx: Any) -> None:
        await asyncio.sleep(60)

    bench.sql(
        "INSERT INTO task_pending (name, queue, payload) "
        "SELECT 't', 'default', '{}' FROM generate_series(1, :n)",
        n=number + 10,
    )
    settings = bench.settings(async_concurrency=number)

    def work() -> None:
        child = Child(settings, bench.registry, bench.slots, queues=(QUEUE,))
        child.start()
        child.execute([bench.sql("SELECT min(id) FROM task_pending")])

    with forked(work) as process:
        until(lambda: sum(len(view.running) for view in bench.slots.occupied()) == number, 30)
        process.kill()

    database = bench.database()
    until(lambda: Reaper(database, bench.slots, bench.registry, settings).reap_dead() == 0)

    aboard = "SELECT count(*) FROM task_pending WHERE state = 'PENDING' AND failures = 0"
    assert bench.sql(f"{aboard} AND crashes = 1") == number
    assert bench.sql(f"{aboard} AND crashes = 0") == 10
    assert bench.slots.occupied() == []


@pytest.mark.test_all
def test_a_busy_async_pool_leaves_to_others_what_would_have_to_run_alone(bench: Bench) -> None:
    go_on = bench.event()

    @bench.handler("slow")
    async def slow(ctx: Any) -> None:
        await eventually(go_on.is_set, 30)

    bench.succeeding("once", at_most_once=True)
    first = bench.create("slow")
    child = bench.child(scan_interval=0.05)
    running = bench.beside(child.execute, [first])
    until(lambda: bench.state(first) == "RUNNING")
    once = bench.create("once")
    for _ in range(3):  # rounds in which it could have been claimed
        more = bench.create("slow")
        until(lambda more=more: bench.state(more) == "RUNNING")

    assert bench.task(once).attempt == 0
    go_on.set()
    running.join(20)


@pytest.mark.test_all
def test_with_one_place_a_child_runs_one_task_at_a_time_plain_ones_too(bench: Bench) -> None:
    aboard = Aboard()

    @bench.handler("async")
    async def waits(ctx: Any) -> None:
        with aboard:
            await asyncio.sleep(0.02)

    @bench.handler("plain")
    def works(ctx: Any) -> None:
        with aboard:
            time.sleep(0.001)

    ids = [bench.create(name) for name in ("async", "plain") * 5]

    bench.execute(ids, async_concurrency=1)

    assert bench.states(ids) == ["SUCCEEDED"] * 10
    assert aboard.most == 1


class TestCancellations:
    """None of ours ever cancels a handler: whatever does is no fault of the run's."""

    def test_who_cancels_all_tasks_of_the_loop_hits_no_run(self, bench: Bench) -> None:
        together, over = asyncio.Barrier(4), asyncio.Event()

        @bench.handler("neighbour", max_attempts=1)
        async def neighbour(ctx: Any) -> None:
            await together.wait()
            await over.wait()

        @bench.handler("cancels", max_attempts=1)
        async def cancels(ctx: Any) -> None:
            await together.wait()
            for task in asyncio.all_tasks():
                task.cancel()
            over.set()
            await asyncio.sleep(0)

        ids = [bench.create(name) for name in ("neighbour", "cancels", "neighbour", "neighbour")]

        bench.execute(ids)

        assert bench.states(ids) == ["SUCCEEDED"] * 4

    def test_who_loses_its_own_task_is_uncharged_once_then_runs_alone(self, bench: Bench) -> None:
        @bench.handler(max_attempts=1)
        async def h(ctx: Any) -> None:
            bench.runs.append(ctx.task_id)
            part = asyncio.create_task(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(part.cancel)
            await part

        task_id = bench.execute_one()
        first = bench.task(task_id)
        bench.sql(NOW_DUE)
        bench.execute([task_id])

        assert (first.state.value, first.failures, first.crashes) == ("PENDING", 0, 1)
        assert bench.attempts(task_id)[0].kind == ABORTED
        assert bench.runs == [task_id] * 2
        assert bench.state(task_id) == "FAILED"
        assert "CancelledError" in bench.error(task_id)

    def test_at_whichever_await_one_comes_the_run_ends_or_goes_back(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also before its first step, without the housekeeper; and the child stays fit."""
        steps = Steps()
        for module in (pools, invocation):
            monkeypatch.setattr(module, "unlisted", steps.unlisted)

        @bench.handler(max_attempts=1)
        async def h(ctx: Any) -> int:
            await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
            await asyncio.sleep(0)
            return ctx.attempt

        child = bench.child()
        monkeypatch.setattr(type(child.inflight), "return_unowned", lambda _: None)
        seen = []
        while steps.cancelled:
            task_id = bench.create()
            steps.begin()
            child.execute([task_id])
            until(lambda: child.inflight.empty)
            task = bench.task(task_id)
            seen.append((task.state.value, bench.effects(task_id), task.failures))

        assert set(seen) == {("PENDING", 0, 0), ("SUCCEEDED", 1, 0)}, seen
        assert seen[-1][0] == "SUCCEEDED"
        assert len(seen) > 5


class Steps:
    """Tasks of the pool; at one of all their steps, a later one each time, comes a cancellation."""

    def __init__(self) -> None:
        self.at, self.step, self.cancelled = 0, 0, True

    def begin(self) -> None:
        self.at, self.step, self.cancelled = self.at + 1, 0, False

    def unlisted(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.Task(Stepped(work, self), name=name)


class Stepped(Coroutine[Any, Any, Any]):
    def __init__(self, work: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self.work, self.steps = work, steps

    def send(self, value: Any) -> Any:
        self.steps.step += 1
        if self.steps.step != self.steps.at:
            return self.work.send(value)
        self.steps.cancelled = True
        return self.work.throw(asyncio.CancelledError())

    def throw(self, *error: Any) -> Any:
        return self.work.throw(*error)

    def close(self) -> None:
        self.work.close()

    def __await__(self) -> Any:
        raise NotImplementedError
