"""How many tasks a second a system can do: what the formula must never get wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dev.benchmarks.sizing.costs import Deployment, TaskCost
from dev.benchmarks.sizing.expectation import expect
from dev.benchmarks.sizing.measured import DrainMeasured, Measured

COST = TaskCost(child_s=0.000_6, database_s=0.000_3, beat_s=0.000_005, trips=2, flushes=1)
PLACE = Deployment(
    children=1, hosts=1, cores=16, database_cores=16, flush_s=0.001, trip_s=0.000_2, slowdown=1.3
)


def test_a_child_alone_takes_one_thing_after_the_other() -> None:
    found = expect(COST, PLACE)

    assert found.rate == pytest.approx(1 / (0.000_6 + 0.000_3 + 2 * 0.000_2 + 0.001), rel=0.01)
    assert found.limit == "children"


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"children": 128, "hosts": 20}, "database"),
        ({"children": 16, "cores": 1, "database_cores": 64}, "workers"),
        ({"children": 64, "hosts": 20, "cores": 64, "database_cores": 1_000}, "beat"),
        ({"children": 4}, "children"),
        ({"children": 4, "cores": 1, "database_cores": None}, "host"),
    ],
)
def test_the_limit_is_what_is_busy_first(change: dict[str, int], limit: str) -> None:
    assert expect(COST, replace(PLACE, **change)).limit == limit


def test_threads_of_a_child_use_one_core() -> None:
    waits = replace(COST, wait_s=0.1)

    assert expect(waits, replace(PLACE, lanes=8)).rate == pytest.approx(8 / 0.1023, rel=0.05)
    assert expect(waits, replace(PLACE, lanes=64, children=4)).used["workers"] < 1
    many = expect(waits, replace(PLACE, lanes=1_000))
    assert many.limit == "workers"
    assert many.rate == pytest.approx(1 / 0.000_6, rel=0.05)


@given(
    children=st.integers(1, 128),
    hosts=st.integers(1, 20),
    cores=st.integers(1, 64),
    database=st.none() | st.integers(1, 64),
    lanes=st.integers(1, 100),
    flush_s=st.floats(0, 0.02),
)
def test_nothing_is_used_more_than_it_is_there(
    children: int, hosts: int, cores: int, database: int | None, lanes: int, flush_s: float
) -> None:
    place = Deployment(children, hosts, cores, database, lanes, flush_s, 0.000_2, 1.3)

    found = expect(COST, place)

    assert found.rate > 0
    assert max(found.used.values()) <= 1.01
    assert found.rate <= place.all_children * lanes / (COST.child_s + COST.database_s)


def test_a_slower_disk_never_makes_it_faster() -> None:
    rates = [
        expect(COST, replace(PLACE, children=8, flush_s=flush_ms / 1e3)).rate
        for flush_ms in (0.1, 0.5, 1, 2, 5)
    ]

    assert rates == sorted(rates, reverse=True)


def test_more_children_never_make_it_slower() -> None:
    rates = [expect(COST, replace(PLACE, children=n)).rate for n in (1, 2, 8, 32, 128, 512)]

    assert rates == sorted(rates)


def test_what_is_not_the_childs_the_networks_or_the_disks_is_the_databases() -> None:
    measured = Measured(
        settings={},
        round_trip_ms=0.3,
        way_ms=0.2,
        commit_ms=1,
        commit_p99_ms=2,
        flush_ms=0.5,
        create_one=1,
        create_bulk=1,
        groups=DrainMeasured(100, 10_000, 40),
        inserts=DrainMeasured(100, 500, 600),
        seconds=20,
    )

    cost = measured.cost_of_inserts(wait_s=0.1)

    assert (cost.child_s, cost.wait_s, cost.group) == (0.000_6, 0.1, 1)
    assert cost.database_s == pytest.approx((2_000 - 600 - 400 - 15) / 1e6)
    alone = replace(PLACE, flush_s=0.000_5)
    assert expect(measured.cost_of_inserts(), alone).rate == pytest.approx(500, rel=0.02)
