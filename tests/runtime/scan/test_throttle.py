"""A kind of tasks that the pool has none of is looked for rarely, as long as there are others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks_app.runtime.scan import EmptyPollBackoff, Pace, PollPaces
from tests.clock import Clock
from tests.runtime.bench import Bench
from tests.statements import watched


class Watch(Clock):
    def look(self, backoff: EmptyPollBackoff, took_s: float, found: int = 0) -> float:
        """Look; return for how long the backoff lasts then."""
        began = self.now
        self.now += took_s
        backoff.looked(began, found=found)
        ended, rest_s = self.now, 0.0
        while backoff.lasts:
            rest_s += 0.01
            self.now = ended + rest_s
        return rest_s


@pytest.fixture
def clock() -> Watch:
    return Watch()


def test_looks_that_are_fast_or_find_something_are_repeated_at_once(clock: Watch) -> None:
    backoff = EmptyPollBackoff(clock=clock)

    assert [clock.look(backoff, 0.001) for _ in range(5)] == [0.0] * 5
    assert [clock.look(backoff, 0.1, found=1) for _ in range(5)] == [0.0] * 5


def test_slow_looks_that_find_nothing_take_a_twentieth_of_the_time(clock: Watch) -> None:
    backoff = EmptyPollBackoff(clock=clock)

    assert clock.look(backoff, 0.03) == 0.0  # one slow look is the machine's
    assert clock.look(backoff, 0.03) == pytest.approx(20 * 0.03, abs=0.02)
    assert clock.look(backoff, 9.0) == pytest.approx(20 * 0.03, abs=0.02)
    assert clock.look(backoff, 9.0) == pytest.approx(5.0, abs=0.02)
    assert clock.look(backoff, 0.03, found=1) == 0.0
    assert clock.look(backoff, 0.03) == 0.0


ALL_SLOW = PollPaces(empty=Pace(0.0, 1e6, 5.0))


def test_beside_plain_tasks_it_is_rarely_looked_for_async_ones(bench: Bench) -> None:
    bench.succeeding("plain")

    @bench.handler("coroutine")
    async def coroutine(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)

    child = bench.child(claim_size=1, paces=ALL_SLOW)
    executor = child.executor
    for _ in range(2):
        executor.top_up(["default"])
    ids = [bench.create("plain") for _ in range(3)]
    with watched(child.database.engine, "%(lonely)s") as claims:
        for _ in ids:
            executor.top_up(["default"])
            executor.run_waiting()

    names = [list(json.loads(claim.values["handlers"])) for claim in claims]
    assert names == [["coroutine"], *[["plain"]] * 3]
    assert bench.runs == ids


def test_when_there_are_no_others_all_kinds_are_looked_for(bench: Bench) -> None:
    bench.succeeding("plain")

    @bench.handler("coroutine")
    async def coroutine(ctx: Any) -> None:
        pass

    executor = bench.child(paces=ALL_SLOW).executor
    for _ in range(2):
        executor.top_up(["default"])
    assert all(backoff.lasts for backoff in executor.poller.backoffs.values())
    bench.create("coroutine")

    assert executor.top_up(["default"]) == 1
