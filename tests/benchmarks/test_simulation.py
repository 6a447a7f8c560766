"""The model of many cores: its engine, its closed form, and the page that it writes."""

from __future__ import annotations

import statistics

import pytest

from dev.benchmarks.simulation import page
from dev.benchmarks.simulation.engine import Clock, Cores, Lock, Log, Process, Resource
from dev.benchmarks.simulation.measure import read
from dev.benchmarks.simulation.model import simulate
from dev.benchmarks.simulation.profiles import checks, profiles, usable
from dev.benchmarks.sizing.costs import Deployment, TaskCost
from dev.benchmarks.sizing.expectation import expect

INSERT = TaskCost(0.000_6, 0.000_3, 0.000_01, 0.000_005, 2, 1.02)
GROUPS = TaskCost(0.000_04, 0.000_03, 0.000_003, 0.000_005, 0.02, 0.006, group=500)
WAITING = TaskCost(0.000_9, 0.000_4, 0, 0.000_005, 3, 1, wait_s=0.1)


def ends(clock: Clock, *steps: list[tuple[Resource, float]]) -> list[float]:
    """When each process has done its steps, all begun at once."""
    found = [0.0] * len(steps)

    def process(number: int) -> Process:
        yield from steps[number]
        found[number] = clock.now

    for number in range(len(steps)):
        clock.resume(process(number))
    clock.run(lambda: False)
    return found


def test_cores_do_as_much_at_once_as_there_are() -> None:
    clock = Clock()
    cores = Cores(clock, 2)
    assert ends(clock, *[[(cores, 0.002)]] * 3) == pytest.approx([0.002, 0.002, 0.004])
    assert cores.busy_s == pytest.approx(0.006)


def test_a_core_is_slower_beside_a_busy_one() -> None:
    clock = Clock()
    cores = Cores(clock, 2, 1.5)
    assert ends(clock, *[[(cores, 0.002)]] * 2) == pytest.approx([0.002, 0.003])


def test_a_long_burst_lets_others_in() -> None:
    clock = Clock()
    core = Cores(clock, 1)
    long, short = ends(clock, [(core, 0.5)], [(core, 0.001)])
    assert (long, short) == pytest.approx((0.501, 0.004))


def test_one_flush_serves_all_who_came_before_it_began() -> None:
    clock = Clock()
    log, cores = Log(clock, 0.005), Cores(clock, 8)
    found = ends(clock, [(log, 0)], [(cores, 0.001), (log, 0)], [(cores, 0.002), (log, 0)])
    assert found == pytest.approx([0.005, 0.010, 0.010])


def test_a_flush_takes_longer_by_what_is_written() -> None:
    clock = Clock()
    log, cores = Log(clock, 0.005), Cores(clock, 8)
    found = ends(clock, [(log, 0.001)], *[[(cores, 0.001), (log, 0.002)]] * 2)
    assert found == pytest.approx([0.006, 0.015, 0.015])


def test_a_commit_delay_lets_those_in_who_come_meanwhile() -> None:
    clock = Clock()
    log, cores = Log(clock, 0.001, delay_s=0.005), Cores(clock, 8)
    found = ends(clock, [(log, 0)], [(cores, 0.002), (log, 0)])
    assert found == pytest.approx([0.006, 0.006])


def test_threads_of_a_child_share_its_interpreter() -> None:
    clock = Clock()
    lock, cores = Lock(clock), Cores(clock, 4)
    steps = [(lock, 1.0), (cores, 0.001), (lock, 0.0)]
    assert sorted(ends(clock, *[steps] * 3)) == pytest.approx([0.001, 0.002, 0.003])


@pytest.mark.test_all
@pytest.mark.parametrize("cost", [INSERT, GROUPS, WAITING], ids=["insert", "groups", "waiting"])
@pytest.mark.parametrize("flush_ms", [0.1, 5])
@pytest.mark.parametrize(
    ("children", "hosts", "database"), [(1, 1, 4), (4, 1, 4), (16, 4, 16), (22, 20, 64)]
)
def test_the_closed_form_agrees_with_the_events(
    cost: TaskCost, flush_ms: float, children: int, hosts: int, database: int
) -> None:
    place = Deployment(children, hosts, 16, database, flush_s=flush_ms / 1e3, slowdown=1.3)
    assert expect(cost, place).rate == pytest.approx(simulate(cost, place).rate, rel=0.15)


@pytest.mark.test_all
def test_the_model_foretells_what_was_measured_here() -> None:
    found = profiles()
    errors = [
        abs(page.predicted(found, trial, records)[1] / rate - 1)
        for trial, records in checks(usable(read()))
        for rate in [statistics.median(record["rate"] for record in records)]
    ]
    assert len(errors) >= 3
    assert statistics.median(errors) < 0.15
    assert max(errors) < 0.4


@pytest.mark.test_all
@pytest.mark.timeout(600)
def test_the_page_says_what_the_model_computes() -> None:
    text = page.PAGE.read_text()
    assert text.split(page.BEGIN)[1].split(page.END)[0].strip() == page.part().strip(), (
        "Run: make scaling"
    )
    assert page.PICTURE.read_text() == page.picture()
