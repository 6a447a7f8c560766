"""The flow: how far ahead a queue is published, by how fast it was worked off lately."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tasks_app.pool.dispatch.ledger import Dispatch
from tasks_app.runtime.dispatch.queue_throughput import AHEAD_S, GROWTH, QueueThroughput

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def message(number: int, size: int = 500) -> Dispatch:
    return Dispatch(number, "q", tuple(range(number * 1000, number * 1000 + size)), NOON)


def flow_with(*out: Dispatch) -> QueueThroughput:
    flow = QueueThroughput()
    flow.look([], 0.0)
    flow.sent(out)
    return flow


def test_nobody_knows_the_flow_of_a_queue_that_has_not_moved() -> None:
    flow = flow_with(message(1))

    flow.look([message(1)], 0.2)

    assert (flow.half_s(), flow.ahead(500)) == (None, 0)


def test_the_rate_is_what_left_between_two_looks() -> None:
    flow = flow_with(message(1), message(2))

    for at in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        flow.look([message(2)], at)
        flow.sent([message(1)])

    assert flow.per_s == pytest.approx(5_000)
    assert flow.ahead(500) == int(flow.per_s * AHEAD_S / 500)
    half_s = flow.half_s()
    assert half_s is not None
    assert half_s == pytest.approx(0.1)


def test_a_queue_that_ran_dry_was_faster_than_it_looked() -> None:
    flow = flow_with(message(1))

    flow.look([], 0.1)
    flow.sent([message(2)])

    assert flow.per_s == GROWTH * 5_000
    half_s = flow.half_s()
    assert half_s is not None
    assert half_s <= 0.05  # a rough guess: look again soon


def test_two_looks_within_a_moment_say_nothing_of_the_rate() -> None:
    flow = flow_with(message(1), message(2))
    flow.look([message(2)], 0.1)
    before = flow.per_s

    flow.look([message(2)], 0.11)

    assert flow.per_s == before


def test_a_rate_that_rises_is_believed_at_once_and_one_that_falls_by_halves() -> None:
    flow = flow_with(message(1), message(2))
    rates = []
    for at in (1.0, 2.0, 2.5, 3.5):
        flow.look([message(2)], at)
        flow.sent([message(1)])
        rates.append(round(flow.per_s))

    assert rates == [500, 500, 1_000, 750]


def test_a_rate_that_rises_steeply_is_looked_at_again_soon() -> None:
    """The first tasks of a cold child take their time, and say little of those behind them."""
    flow = flow_with(message(1, 10), message(2, 10))
    halves = []
    for at in (0.1, 0.2, 0.3):
        flow.look([message(2, 10)], at)
        flow.sent([message(1, 10)])
        halves.append(flow.half_s())

    assert halves == pytest.approx([0.05, 0.1, 0.1])


def test_an_estimate_is_trusted_for_twice_as_long_as_was_watched() -> None:
    flow = flow_with(message(1, 10), message(2, 10))
    flow.look([message(2, 10)], 0.1)
    flow.sent([message(1, 10)])

    flow.look([message(2, 10)], 0.2)
    flow.sent([message(number) for number in range(3, 11)])

    assert flow.half_s() == pytest.approx(0.2)
