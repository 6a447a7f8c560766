"""The page says what the runs say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dev.benchmarks.figures import Figures
from dev.benchmarks.goals import GOALS
from dev.benchmarks.plan import SCENARIOS
from dev.benchmarks.report import TEMPLATE, figures_page, goal_rows, page
from dev.benchmarks.run import Choice
from dev.benchmarks.systems import SYSTEMS
from dev.benchmarks.verdicts import Goal, judge

SESSION = {
    "kind": "session",
    "at": "2026-11-21T15:10:00+00:00",
    "commit": "abc1234",
    "machine": {"cpu": "a CPU", "cores": 2, "memory_gib": 24, "system": "Linux 6", "load": 0.1},
    "servers": {"PostgreSQL": "18.4"},
}


def figures(*runs: dict[str, Any]) -> Figures:
    found = Figures()
    found.read(json.dumps(record) for record in (SESSION, *({"kind": "run", **r} for r in runs)))
    return found


def drained(system: str, *rates: float) -> list[dict[str, Any]]:
    return [
        {"scenario": "drain", "system": system, "round": n, "n": 100, "rate": rate}
        for n, rate in enumerate(rates, 1)
    ]


@pytest.mark.parametrize(
    ("ours", "met"), [(64.0, "NO"), (65.0, "must"), (89.0, "must"), (90.0, "aim")]
)
def test_a_goal_compares_medians_with_the_best_peer(ours: float, met: str) -> None:
    runs = figures(
        *drained("ours-celery", 1.0, ours, 1000.0),
        *drained("pgqueuer", 1.0, 50.0, 900.0),
        *drained("graphile", 40.0, 40.0, 40.0),
    )

    verdict = judge(GOALS[0], runs)

    assert (verdict.best, verdict.value, verdict.met) == ("pgqueuer", ours / 50, met)


@pytest.mark.parametrize(("value", "met"), [(1.11, "NO"), (1.1, "must"), (1.03, "aim")])
def test_a_goal_may_be_an_upper_bound(value: float, met: str) -> None:
    goal = Goal("g", "drain", "ours-celery", "rate", 1.1, 1.03, "most")

    assert judge(goal, figures(*drained("ours-celery", value))).met == met


def test_of_several_ways_of_ours_the_best_counts_and_is_named() -> None:
    goal = Goal("g", "drain", "threads", "rate", 1.2, None, theirs=("t",), or_ours=("async",))
    runs = figures(*drained("threads", 10.0), *drained("async", 24.0), *drained("t", 20.0))

    verdict = judge(goal, runs)

    assert (verdict.way, verdict.value, verdict.met) == ("async", 1.2, "must")


def test_what_was_not_measured_is_not_met() -> None:
    assert {row[-1] for row in list(goal_rows(figures()))[1:]} == {"not measured"}


def test_a_failed_run_counts_nowhere_and_is_told() -> None:
    failed = {"scenario": "drain", "system": "celery", "round": 2, "n": 9, "failed": "it burnt"}
    missing = {"scenario": "drain", "system": "graphile", "left_out": "no node"}
    found = figures(*drained("celery", 10.0, 30.0), failed, missing)

    text = page(found, TEMPLATE.read_text())

    assert "| celery | 100 | 2 | 20.0 (10.0 - 30.0) |" in figures_page(found)
    assert "3 runs; 2 passed their audits, 1 failed." in text
    assert "FAILED: drain, celery, round 2: it burnt" in text
    assert "not measured: drain (graphile): no node" in text
    assert "2 x a CPU, 24 GiB, Linux 6; PostgreSQL 18.4" in text
    assert "<!--" not in text


def test_of_the_same_row_the_later_file_counts() -> None:
    found = figures(*drained("celery", 10.0), *drained("pgqueuer", 7.0))
    again = [json.dumps({"kind": "run", **run}) for run in drained("celery", 20.0)]
    found.read(again)

    spreads = [found.spread("drain", system, "rate") for system in ("celery", "pgqueuer")]
    assert [spread and spread.values for spread in spreads] == [(20.0,), (7.0,)]


def test_every_goal_and_entry_names_what_is_measured() -> None:
    measured = {(scenario.name, e.name) for scenario in SCENARIOS for e in scenario.entries}
    asked = {
        (goal.scenario, name) for goal in GOALS for name in (goal.ours, *goal.or_ours, *goal.theirs)
    }
    named = {e.system for scenario in SCENARIOS for e in scenario.entries}

    assert {pair for pair in asked if pair[1].startswith("ours")} <= measured
    assert all(
        {(goal.scenario, t) for t in goal.theirs} & measured for goal in GOALS if goal.theirs
    )
    assert named <= set(SYSTEMS)


def test_what_judges_a_change_is_measured_only_when_it_is_named() -> None:
    names = {"waking-drain", "waking-flush"}

    assert not any(scenario.by_name for scenario, _ in Choice().plan())
    assert not any(scenario.by_name for scenario, _ in Choice(quick=True).plan())
    assert {s.name for s, _ in Choice(scenarios=frozenset(names)).plan()} == names
