"""``tasks-app work``: a parent that replaces its child, whatever way a task ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.bench import Bench
from tests.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60, method="thread")]

HOUSE = Path(__file__).parents[1] / "broker" / "house"


def work(bench: Bench, *arguments: str) -> subprocess.Popen:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    ours = {
        "TASKS_APP_DATABASE_URL": bench.url,
        "TASKS_APP_IMPORTS": "house_handlers",
        "PYTHONPATH": str(HOUSE),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tasks_app", "work", *arguments],
        env={**kept, **ours},
        stderr=subprocess.DEVNULL,
    )


def test_poison_runs_max_attempts_times_and_its_neighbours_are_not_charged(bench: Bench) -> None:
    """By a signal, and by leaving through the back door with a good status."""
    bench.sql("CREATE TABLE IF NOT EXISTS effect (task_id bigint, note text)")
    before = [bench.create("ok") for _ in range(20)]
    poison = [
        bench.create("poison", max_attempts=1),
        bench.create("quit", {"status": 0}, retry="0s"),
    ]
    after = [bench.create("ok") for _ in range(20)]

    status = work(bench, "--drain").wait(50)

    assert status == 0
    assert bench.states(poison) == ["FAILED"] * 2
    deaths = [[a.kind for a in bench.attempts(i)] for i in poison]
    assert deaths == [["process died"], ["process died"] * 2]
    assert [bench.task(i).crashes for i in poison] == [0, 0]
    neighbours = [bench.task(i) for i in (*before, *after)]
    assert {(t.state.value, t.failures, t.crashes) for t in neighbours} == {("SUCCEEDED", 0, 0)}
    assert [bench.effects(t.id) for t in neighbours] == [1] * 40


def test_sigterm_ends_parent_and_child_after_the_running_task(bench: Bench) -> None:
    task_id = bench.create("slow", {"seconds": 0.5})
    rest = [bench.create("ok", delay="1h")]
    parent = work(bench)
    until(lambda: bench.state(task_id) == "RUNNING", 20)

    parent.send_signal(signal.SIGTERM)

    assert parent.wait(20) == 0
    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.states(rest) == ["PENDING"]
    assert bench.sql("SELECT count(*) FROM task_worker") == 0
