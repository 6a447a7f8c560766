"""What the benchmarks measure, expect, compare, keep and print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dev.benchmarks import against, gate, marks, run
from dev.benchmarks.audit import AuditError, audit
from dev.benchmarks.calibration import calibrate
from dev.benchmarks.environments import PEERS, PROJECT, MissingError, Ours, newest_python
from dev.benchmarks.environments import run as run_command
from dev.benchmarks.figures import Figures
from dev.benchmarks.goals import GOALS
from dev.benchmarks.plan import SCENARIOS
from dev.benchmarks.processes import left_over
from dev.benchmarks.report import TEMPLATE, figures_page, goal_rows, page
from dev.benchmarks.run import Choice
from dev.benchmarks.scenarios.contention import contention
from dev.benchmarks.scenarios.create import create
from dev.benchmarks.scenarios.drain import drain
from dev.benchmarks.scenarios.latency import latency
from dev.benchmarks.servers import Servers
from dev.benchmarks.sizing.costs import Deployment, TaskCost
from dev.benchmarks.sizing.expectation import expect
from dev.benchmarks.sizing.measured import DrainMeasured, Measured
from dev.benchmarks.stage import Run, Stage
from dev.benchmarks.systems import SYSTEMS
from dev.benchmarks.systems.system import System
from dev.benchmarks.verdicts import Goal, judge
from tasks_app.embedded.stack import Stack


@pytest.fixture
def stage(stack: Stack) -> Stage:
    """Without the databases of other tests, whose names would be taken again."""
    servers = Servers(stack)
    for (name,) in servers.ask("SELECT datname FROM pg_database WHERE datname LIKE 'bench_%'"):
        servers.drop(name)
    return Stage(servers)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("BENCH_MARKS", str(tmp_path))
    monkeypatch.setenv("BENCH_N", "10")
    yield tmp_path
    marks._writers.clear()


@pytest.mark.test_all
@pytest.mark.test_all
def test_a_drain_is_measured_and_audited(stage: Stage) -> None:
    result = drain(stage, SYSTEMS["ours-celery"], 200, "insert")
    assert result["audit"] == {
        "runs": 200,
        "tasks_run": 200,
        "unfinished": False,
        "pools": {"SUCCEEDED": [200, 200]},
        "effects": [200, 200],
    }
    assert 0 < result["rate_from_scan"] < result["rate"]


@pytest.mark.parametrize(
    ("indices", "wrong"),
    [([0, 1, 1], "tasks_run"), ([0, 1, 2, 2], "runs"), ([0, 1], "runs, tasks_run")],
)
def test_a_task_that_ran_twice_or_never_is_noticed(
    folder: Path, stack: Stack, indices: list[int], wrong: str
) -> None:
    system = System("s", "a broker", Ours(), ())
    run = Run(Servers(stack), system, "postgres", folder, 3)
    for index in indices:
        marks.mark(index, marks.now())
    with pytest.raises(AuditError, match=f"wrong {wrong} of 3"):
        audit(run, list(run.marks.all()))


def test_marks_are_counted_while_they_are_written(folder: Path) -> None:
    watched = marks.Marks(folder)
    seen = []
    for index in range(5):
        marks.mark(index, marks.now())
        seen.append(watched.count())
    assert seen == [1, 2, 3, 4, 5]
    assert [index for index, started, ended in watched.all() if started <= ended] == [0, 1, 2, 3, 4]


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


RECORDED = dict.fromkeys(gate.TOLERANCES, 8.0)


def test_what_was_recorded_passes() -> None:
    assert all(finding.holds for finding in gate.judge(RECORDED, RECORDED))


@pytest.mark.parametrize("name", gate.TOLERANCES)
def test_any_figure_half_as_much_again_is_refused(name: str) -> None:
    findings = gate.judge(RECORDED, RECORDED | {name: RECORDED[name] * 1.5})
    assert [finding.name for finding in findings if not finding.holds] == [name]


def test_what_was_never_recorded_is_refused() -> None:
    assert not any(finding.holds for finding in gate.judge({}, RECORDED))


@pytest.mark.test_all
def test_the_gate_says_what_became_slower_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gate.json"
    monkeypatch.setattr(gate, "measure", lambda burn_ns=0: RECORDED)
    assert gate.gate(record=True, path=path) == 0
    assert json.loads(path.read_text())["figures"] == RECORDED
    assert gate.gate(path=path) == 0
    monkeypatch.setattr(gate, "measure", lambda burn_ns=0: RECORDED | {"noop_cpu": 12.0})
    assert gate.gate(path=path) == 1
    said = capsys.readouterr().out
    assert "BAD noop_cpu" in said
    assert "1.50 x" in said


def test_the_slowness_that_is_tried_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "calibrate", lambda: 150.0)
    known = {"figures": {"noop_cpu": 0.5}}
    assert gate._burn_ns(known, 1.0) == 0
    assert gate._burn_ns(known, 1.5) == 37_500  # half of 0.5 x 150 us


@pytest.mark.test_all
def test_the_calibration_takes_cpu_time() -> None:
    assert 1 < calibrate() < 60_000


@pytest.mark.test_all
def test_nothing_is_measured_beside_processes_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "BENCH_MARKS"
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={**os.environ, name: "x"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert other.pid in left_over(name)

        assert run.run(run.Choice(), tmp_path / "results") == 1

        assert str(other.pid) in capsys.readouterr().err
        assert not (tmp_path / "results").exists()
        other.communicate(b"\n")
    assert other.pid not in left_over(name)


def rounds(*runs: dict[str, Any]) -> Figures:
    found = Figures()
    about = {"kind": "run", "scenario": "drain", "system": "ours"}
    found.read(json.dumps({**about, "round": n, **run}) for n, run in enumerate(runs, 1))
    return found


def test_medians_are_compared_where_both_have_the_figure() -> None:
    here = rounds({"rate": 10.0, "lost": 0, "new": 1.0}, {"rate": 30.0, "lost": 0, "new": 1.0})
    there = rounds({"rate": 10.0, "lost": 0}, {"failed": "it burnt"})
    assert list(against.compared(here, there)) == [
        ("drain", "ours", "rate", "20", "10", "2.00"),
        ("drain", "ours", "lost", "0", "0", ""),
    ]


def test_the_other_checkout_lends_all_but_its_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against, "LINKS", tmp_path / "links")
    for name in ("tasks_app", "dev", ".venv"):
        (tmp_path / "other" / name).mkdir(parents=True)
    for _ in range(2):
        links = against._links(tmp_path / "other")
    assert {each.name: each.resolve() for each in links.iterdir()} == {
        "tasks_app": tmp_path / "other" / "tasks_app",
        "dev": PROJECT / "dev",
    }


def test_what_needs_a_python_that_is_not_here_is_not_measured() -> None:
    with pytest.raises(MissingError, match=r"^NOT MEASURED: x needs Python 3\.99, which is not"):
        newest_python("x", (3, 99))
    assert newest_python("x", (3, 11)) == sys.executable


@pytest.mark.test_all
def test_a_step_that_fails_is_told_without_what_it_said(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MissingError) as caught:
        run_command([sys.executable, "-c", "raise SystemExit('no https://host/')"], "x")
    assert str(caught.value) == "NOT MEASURED: x cannot be installed here."
    assert "no https://host/" in capfd.readouterr().err


def test_no_pin_says_where_it_came_from() -> None:
    for file in PEERS.glob("*/package-lock.json"):
        packages = json.loads(file.read_text())["packages"].values()
        assert not [package for package in packages if "resolved" in package], file
    for file in PEERS.glob("*/requirements.txt"):
        assert "://" not in file.read_text(), file


OURS = SYSTEMS["ours-celery"]


@pytest.mark.test_all
@pytest.mark.parametrize(
    "how",
    [
        {"verb": "single"},
        {"verb": "single_on_a_session"},
        {"verb": "bulk"},
        {"verb": "bulk", "size": 30},
        {"verb": "bulk_on_psycopg", "size": 30},
    ],
)
def test_a_way_of_creating_is_measured(stage: Stage, how: dict[str, Any]) -> None:
    result = create(stage, OURS, 100, **how)
    assert result["rate"] > 0
    assert result["audit"] == {"rows": 150}


@pytest.mark.test_all
def test_latency_is_counted_from_the_call_and_from_the_commit(stage: Stage) -> None:
    result = latency(stage, OURS, 20)
    assert result["audit"]["tasks_run"] == 80
    assert result["commit_p50_ms"] < result["p50_ms"]


@pytest.mark.test_all
def test_a_lock_that_many_want_changes_hands(stage: Stage) -> None:
    result = contention(stage, OURS, 1, "1 process, 8 threads")
    assert result["grants_per_s"] > 0
    assert result["audit"] == {"faults": 0}
