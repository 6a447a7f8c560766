"""Systems that are compared, and the environments they run in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks import against
from dev.benchmarks.environments import PEERS, PROJECT, MissingError, newest_python, run
from dev.benchmarks.figures import Figures
from dev.benchmarks.scenarios.contention import contention
from dev.benchmarks.scenarios.create import create
from dev.benchmarks.scenarios.latency import latency
from dev.benchmarks.stage import Stage
from dev.benchmarks.systems import SYSTEMS


def figures(*runs: dict[str, Any]) -> Figures:
    found = Figures()
    about = {"kind": "run", "scenario": "drain", "system": "ours"}
    found.read(json.dumps({**about, "round": n, **run}) for n, run in enumerate(runs, 1))
    return found


def test_medians_are_compared_where_both_have_the_figure() -> None:
    here = figures({"rate": 10.0, "lost": 0, "new": 1.0}, {"rate": 30.0, "lost": 0, "new": 1.0})
    there = figures({"rate": 10.0, "lost": 0}, {"failed": "it burnt"})
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
def test_a_step_that_fails_is_told_without_what_it_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(MissingError) as caught:
        run([sys.executable, "-c", "raise SystemExit('no https://host/')"], "x")
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
