"""Two checkouts are measured by turns, each with its own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks import against
from dev.benchmarks.environments import PROJECT
from dev.benchmarks.figures import Figures


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
