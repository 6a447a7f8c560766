"""``tasks-app work``: a parent that replaces its child, whatever way a task ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.runtime.bench import Bench
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(150, method="thread")]

HOUSE = Path(__file__).parents[2] / "broker" / "house"


LEAVES = """
import threading
from concurrent.futures import ThreadPoolExecutor
from tasks_app import handler

POOL = ThreadPoolExecutor()

@handler("leaves")
def leaves(ctx):
    threading.Thread(target=threading.Event().wait).start()
    POOL.submit(threading.Event().wait)
"""


def work(
    bench: Bench, *arguments: str, log: Any = subprocess.DEVNULL, modules: str = "house_handlers"
) -> subprocess.Popen:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    ours = {
        "TASKS_APP_DATABASE_URL": bench.url,
        "TASKS_APP_IMPORTS": modules,
        "PYTHONPATH": os.pathsep.join([str(HOUSE), os.environ.get("PYTHONPATH", "")]),
    }
    parent = subprocess.Popen(
        [sys.executable, "-m", "tasks_app", "work", *arguments],
        env={**kept, **ours},
        stderr=log,
    )
    bench.at_end(lambda: end(parent))
    return parent


def test_a_thread_that_a_handler_left_does_not_keep_the_worker(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does an executor. The first signal is answered, and children can be told apart."""
    (tmp_path / "leaves_handlers.py").write_text(LEAVES)
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(tmp_path))
    task_id = bench.create("leaves")
    lines = tmp_path / "log"
    with lines.open("w") as log:
        parent = work(bench, "-c", "2", log=log, modules="leaves_handlers")
    until(lambda: bench.state(task_id) == "SUCCEEDED", 90)

    parent.send_signal(signal.SIGINT)

    assert parent.wait(60) == 0
    said = lines.read_text()
    assert "SIGINT: nothing more starts" in said
    assert "ended, although these threads did not: " in said
    assert "MainThread" not in said
    ready = [line.split()[2] for line in said.splitlines() if " ready: " in line]
    assert len(set(ready)) == 2


def end(parent: subprocess.Popen) -> None:
    """Leave nothing of a failed test to the next one."""
    with suppress(psutil.NoSuchProcess):
        for process in (*psutil.Process(parent.pid).children(), parent):
            process.kill()
    parent.wait()


def test_poison_runs_max_attempts_times_and_its_neighbours_are_not_charged(bench: Bench) -> None:
    """By a signal, and by leaving through the back door with a good status."""
    bench.sql("CREATE TABLE IF NOT EXISTS effect (task_id bigint, note text)")
    before = [bench.create("ok") for _ in range(20)]
    poison = [
        bench.create("poison", max_attempts=1),
        bench.create("quit", {"status": 0}, retry="0s"),
    ]
    after = [bench.create("ok") for _ in range(20)]

    status = work(bench, "--drain").wait(100)

    assert status == 0
    assert bench.states(poison) == ["FAILED"] * 2
    deaths = [[a.kind for a in bench.attempts(i)] for i in poison]
    assert deaths == [["process died"], ["process died"] * 2]
    assert [bench.task(i).crashes for i in poison] == [0, 0]
    neighbours = [bench.task(i) for i in (*before, *after)]
    assert {(t.state.value, t.failures, t.crashes) for t in neighbours} == {("SUCCEEDED", 0, 0)}
    assert [bench.effects(t.id) for t in neighbours] == [1] * 40


HAS_BEGUN = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle in transaction' AND query ~ 'INTO effect'
"""
"""The handler's transaction: a task that is only claimed would be given back."""


def test_sigterm_ends_parent_and_child_after_the_running_task(bench: Bench) -> None:
    task_id = bench.create("slow", {"seconds": 2.0})
    rest = [bench.create("ok", delay="1h")]
    parent = work(bench)
    until(lambda: bench.sql(HAS_BEGUN), 30)

    parent.send_signal(signal.SIGTERM)

    assert parent.wait(30) == 0
    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.states(rest) == ["PENDING"]
    assert bench.sql("SELECT count(*) FROM task_worker") == 0


LIVE = "SELECT count(*) FROM task_worker"


def children(parent: subprocess.Popen) -> list[psutil.Process]:
    """Return its children."""
    return psutil.Process(parent.pid).children()


def test_each_child_is_a_process_and_a_drain_ends_with_the_last_of_them(bench: Bench) -> None:
    ids = [bench.create("who") for _ in range(12)]
    last = bench.create("slow", {"seconds": 1.0}, priority=9)

    assert work(bench, "-c", "3", "--drain").wait(100) == 0

    assert bench.states([*ids, last]) == ["SUCCEEDED"] * 13
    assert len({bench.task(i).result["pid"] for i in ids}) > 1
    assert bench.sql(LIVE) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_whoever_ends_one_child_ends_only_that_one(bench: Bench, number: signal.Signals) -> None:
    parent = work(bench, "-c", "2")
    until(lambda: bench.sql(LIVE) == 2, 30)
    victim, sibling = children(parent)
    ids = [bench.create("who") for _ in range(6)]
    until(lambda: bench.states(ids).count("RUNNING"), 30)

    victim.send_signal(number)

    until(lambda: bench.states(ids) == ["SUCCEEDED"] * 6, 30)
    until(lambda: len(children(parent)) == 2 and victim not in children(parent), 30)
    assert sibling in children(parent)
    until(lambda: bench.sql(LIVE) == 2, 30)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
    assert not sibling.is_running()


def test_children_end_by_themselves_when_their_parent_is_killed(bench: Bench) -> None:
    running = [bench.create("slow", {"seconds": 1.0}) for _ in range(2)]
    parent = work(bench, "-c", "2")
    until(lambda: bench.states(running) == ["RUNNING"] * 2, 30)
    orphans = children(parent)

    parent.kill()
    parent.wait()

    assert psutil.wait_procs(orphans, 30)[1] == []
    assert bench.states(running) == ["SUCCEEDED"] * 2
    assert bench.sql(LIVE) == 0


def test_an_orphan_does_not_outlive_the_hard_limit_of_its_task(bench: Bench) -> None:
    task_id = bench.create("hang")
    parent = work(bench, "-c", "1")
    until(lambda: bench.state(task_id) == "RUNNING", 30)
    (orphan,) = children(parent)

    parent.kill()
    parent.wait()

    assert psutil.wait_procs([orphan], 30)[1] == []
    assert bench.state(task_id) == "RUNNING"  # until its lease is over
