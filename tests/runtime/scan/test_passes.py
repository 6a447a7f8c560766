"""Where claims from the pool begin while there is enough to do: behind what was taken last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tasks_app.runtime.scan import LONGEST_REST_S, Pace, PollPaces, ScanPasses, Start
from tests.clock import Clock
from tests.runtime.bench import Bench

WHOLE, GOES_ON = Start(), Start(goes_on=True)


class Watch(Clock):
    def read(self, passes: ScanPasses, took: float, found: int = 0) -> Start:
        """Make a pass; return where it began."""
        began = self.now
        start = passes.start(began)
        self.now += took
        if found:
            passes.places["default", 5] = (self.now, 1)
        passes.was_read(began, start, left=found)
        return start


@pytest.fixture
def clock() -> Watch:
    return Watch()


def test_while_there_is_something_they_go_on_and_a_twentieth_of_the_time_is_for_whole_ones(
    clock: Watch,
) -> None:
    passes = ScanPasses(clock=clock)
    read = [clock.read(passes, 0.01, found=500) for _ in range(2_100)]

    assert read[:3] == [WHOLE, WHOLE, GOES_ON]
    assert 95 <= read.count(WHOLE) <= 105
    assert read.count(WHOLE) + read.count(GOES_ON) == len(read)


def test_one_that_goes_on_and_finds_nothing_is_followed_by_one_that_does_not(clock: Watch) -> None:
    passes = ScanPasses(clock=clock)
    for _ in range(2):
        clock.read(passes, 0.1, found=500)

    assert clock.read(passes, 0.0) == GOES_ON
    assert clock.read(passes, 0.0) == WHOLE
    assert clock.read(passes, 0.0) == WHOLE


def test_a_whole_one_begins_at_the_front(clock: Watch) -> None:
    passes = ScanPasses(clock=clock)
    clock.read(passes, 0.01, found=500)
    assert passes.places

    assert passes.start(clock.now) == WHOLE
    assert not passes.places


def test_the_next_whole_one_is_never_far(clock: Watch) -> None:
    passes = ScanPasses(clock=clock)
    for _ in range(2):
        clock.read(passes, 20.0, found=500)

    clock.now += LONGEST_REST_S - 0.1
    assert clock.read(passes, 0.0, found=500) == GOES_ON
    clock.now += 0.2
    assert clock.read(passes, 0.0, found=500) == WHOLE


def test_where_whole_ones_are_slow_they_go_on_behind_what_became_due_lately(clock: Watch) -> None:
    passes = ScanPasses(clock=clock)
    for _ in range(3):
        clock.read(passes, 0.1)

    first = clock.read(passes, 0.01, found=1)
    again = clock.read(passes, 0.01, found=1)

    assert first.within is not None
    assert again == GOES_ON


def test_a_worker_with_enough_to_do_finds_older_tasks_at_its_next_whole_pass(
    bench: Bench,
) -> None:
    rarely = PollPaces(back=Pace(0.0, 1_000_000, LONGEST_REST_S))
    bench.succeeding()
    executor = bench.child(claim_size=5, paces=rarely).executor
    ids = [bench.create() for _ in range(25)]

    def pass_on() -> None:
        executor.top_up(["default"])
        executor.run_waiting()

    pass_on()
    pass_on()
    old = bench.create(run_at=datetime.now(UTC) - timedelta(hours=1))
    urgent = bench.create(priority=0)
    pass_on()
    assert bench.runs == [*ids[:10], urgent, *ids[10:14]]
    executor.poller.begin_at_the_front()
    pass_on()

    assert bench.runs[15:] == [old, *ids[14:18]]
