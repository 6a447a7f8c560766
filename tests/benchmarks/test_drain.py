"""A measurement is worth nothing if the tasks were not done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.benchmarks import marks
from dev.benchmarks.audit import AuditError, audit
from dev.benchmarks.environments import Ours
from dev.benchmarks.scenarios.drain import drain
from dev.benchmarks.servers import Servers
from dev.benchmarks.stage import Run, Stage
from dev.benchmarks.systems import SYSTEMS
from dev.benchmarks.systems.system import System
from tasks_app.embedded.stack import Stack


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
