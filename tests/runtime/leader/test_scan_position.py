"""Where claims from the pool begin to read: at the front, but more rarely where that is slow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tasks_app.runtime import scan
from tasks_app.runtime.scan import LONGEST_PAUSE_S, MARGIN_S, Pace, PollPaces, ScanPosition
from tests.clock import Clock, until
from tests.runtime.bench import Bench

pytestmark = pytest.mark.timeout(60, method="thread")


class Watch(Clock):
    def read(self, front: ScanPosition, took: float, found: int = 0) -> timedelta | None:
        """Make a pass; return what it read."""
        began = self.now
        within = front.within(began)
        self.now += took
        front.was_read(began, within, left=found)
        return within


@pytest.fixture
def clock() -> Watch:
    return Watch()


def test_while_whole_passes_are_fast_all_are_whole(clock: Watch) -> None:
    front = ScanPosition(clock=clock)
    assert [clock.read(front, 0.005) for _ in range(100)] == [None] * 100


def test_slow_whole_passes_take_a_two_hundredth_of_the_time(clock: Watch) -> None:
    front = ScanPosition(clock=clock)
    passes = []
    for _ in range(4_000):
        whole = front.within(clock.now) is None
        passes.append(whole)
        clock.read(front, 0.04 if whole else 0.002)
        clock.now += 0.098
    assert passes[:2] == [True, True]
    assert 45 <= sum(passes) <= 55  # of 400 seconds


def test_one_slow_pass_is_the_machines_and_the_next_is_whole_again(clock: Watch) -> None:
    front = ScanPosition(clock=clock)
    assert [clock.read(front, took) for took in (0.0, 5.0, 0.0, 5.0, 0.0)] == [None] * 5


def test_between_them_all_is_read_since_a_pass_that_found_nothing(clock: Watch) -> None:
    front = ScanPosition(clock=clock)
    clock.read(front, 0.1)
    clock.read(front, 0.1)

    clock.now += 1
    first = clock.read(front, 0.0, found=3)
    clock.now += 1
    second = clock.read(front, 0.0)
    third = clock.read(front, 0.0)

    assert first == timedelta(seconds=1.1 + MARGIN_S)
    assert second == timedelta(seconds=2.1 + MARGIN_S)
    assert third == timedelta(seconds=MARGIN_S)


def test_as_long_as_there_is_something_from_the_front_on_all_are_whole(clock: Watch) -> None:
    front = ScanPosition(clock=clock)
    assert [clock.read(front, 0.1, found=500) for _ in range(10)] == [None] * 10


def test_the_next_whole_pass_is_never_far(clock: Watch) -> None:
    front = ScanPosition(clock=clock)
    clock.read(front, 20.0)
    clock.read(front, 20.0)
    clock.now += LONGEST_PAUSE_S - 0.1
    assert clock.read(front, 0.0) is not None
    clock.now += 0.2
    assert clock.read(front, 0.0) is None


class WatchedPosition(ScanPosition):
    """Notes what each pass is to read."""

    def __init__(self, pace: Pace) -> None:
        super().__init__(pace)
        self.asked: list[timedelta | None] = []

    def within(self, began: float) -> timedelta | None:
        self.asked.append(super().within(began))
        return self.asked[-1]


def all_slow(longest_pause_s: float) -> Pace:
    return Pace(0.0, 1_000_000, longest_pause_s)


@pytest.mark.test_all
def test_a_worker_finds_new_tasks_at_once_and_old_ones_at_its_next_whole_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = all_slow(4.0)
    monkeypatch.setattr(scan, "PACES", PollPaces(front=pace))  # claims wait as long
    position = WatchedPosition(pace)
    bench.succeeding()
    work = bench.work(front=position)
    bench.beside(work.run)
    until(lambda: position.asked[-1:] and position.asked[-1] is not None)
    old = bench.create(run_at=datetime.now(UTC) - timedelta(hours=1))
    new = bench.create()

    until(lambda: bench.runs)
    assert bench.runs == [new]
    until(lambda: len(bench.runs) == 2)
    assert bench.runs == [new, old]
    assert None in position.asked[1:]


@pytest.mark.test_all
def test_a_worker_that_drains_reads_all_once_more_before_it_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = all_slow(60.0)
    monkeypatch.setattr(scan, "PACES", PollPaces(front=pace))
    position = WatchedPosition(pace)

    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        if len(bench.runs) == 1:
            until(lambda: sum(within is not None for within in position.asked) > 10)
            bench.create(run_at=datetime.now(UTC) - timedelta(hours=1))

    bench.create()

    bench.work(concurrency=2, front=position).run(drain=True)

    assert len(bench.runs) == 2
