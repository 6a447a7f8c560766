"""Processes of `tasks-app work`: recycled ones, ones that hang at their end, and orphans."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clock import until
from tests.runtime.bench import Bench
from tests.runtime.worker.test_supervisor import work

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(150, method="thread")]
HANDLERS = '''
import atexit, ctypes, os, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from tasks_app import handler

POOL = ThreadPoolExecutor()
HELD = []

@handler("pid")
def pid(ctx):
    return {"pid": os.getpid()}

@handler("sleeps")
def sleeps(ctx, payload):
    time.sleep(payload["seconds"])
    return {"pid": os.getpid()}

@handler("grows")
def grows(ctx, payload):
    HELD.append(b"x" * payload["bytes"])
    return {"pid": os.getpid()}

@handler("leaves")
def leaves(ctx, payload):
    """Leave something that never ends."""
    match payload["what"]:
        case "thread":
            threading.Thread(target=threading.Event().wait).start()
        case "executor":
            POOL.submit(threading.Event().wait)
        case "exit function":
            atexit.register(threading.Event().wait)
        case "exit function that lets no other thread run":
            atexit.register(ctypes.PyDLL(None).sleep, 1000)

@handler("forks_twice")
def forks_twice(ctx):
    """Leave a grandchild that ends after a while."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '3']).pid)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    return {"pid": os.getpid(), "grandchild": int(said)}
'''
BULK = '''
import signal
@handler("bulk", at_once=10)
def bulk(ctx, items):
    """Kill the process for one of the items, as a crash in C does."""
    for item in items:
        if item.payload["n"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        item.result(len(items))
'''
Work = Callable[..., subprocess.Popen]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def start(bench: Bench, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Start a worker of the handlers above."""
    (tmp_path / "process_handlers.py").write_text(HANDLERS + BULK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def begin(*arguments: str, **more: Any) -> subprocess.Popen:
        with log.open("w") as file:
            return work(bench, *arguments, log=file, modules="process_handlers", **more)

    return begin


def pids(bench: Bench, ids: list[int]) -> list[int]:
    return [bench.task(task_id).result["pid"] for task_id in ids]


def test_a_process_takes_so_many_tasks_and_its_neighbours_are_not_charged(
    bench: Bench, start: Work, log: Path
) -> None:
    ids = [bench.create("pid") for _ in range(7)]

    assert start("-c", "1", "--drain", "--max-tasks", "3").wait(100) == 0

    ran = pids(bench, ids)
    assert [ran.count(pid) for pid in dict.fromkeys(ran)] == [3, 3, 1]
    assert {(t.attempt, t.failures, t.crashes) for t in map(bench.task, ids)} == {(1, 0, 0)}
    assert log.read_text().count("ends after 3 tasks (--max-tasks); another process") == 2
    assert "status" not in log.read_text()


def test_its_successor_does_not_wait_for_its_last_task(bench: Bench, start: Work) -> None:
    slow, first = bench.create("sleeps", {"seconds": 20}), bench.create("pid")
    start("-c", "1", "--threads", "2", "--max-tasks", "2")
    until(lambda: bench.state(first) == "SUCCEEDED", 60)
    second = bench.create("pid")

    until(lambda: bench.state(second) == "SUCCEEDED", 19)

    assert bench.state(slow) == "RUNNING"
    until(lambda: bench.state(slow) == "SUCCEEDED", 30)
    ran = pids(bench, [slow, first, second])
    assert ran[0] == ran[1] != ran[2]


def test_a_process_that_has_grown_is_replaced(bench: Bench, start: Work, log: Path) -> None:
    ids = [bench.create("grows", {"bytes": size}) for size in (1, 300 * 1024**2, 1)]
    parent = start("-c", "1", "--max-memory", "350MB")
    until(lambda: bench.states(ids) == ["SUCCEEDED"] * 3, 60)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
    assert "MB in memory (--max-memory); another process takes its place" in log.read_text()


LEFT = ["thread", "executor", "exit function", "exit function that lets no other thread run"]


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("what", LEFT)
def test_what_a_handler_left_does_not_keep_a_worker_beyond_its_grace(
    bench: Bench, start: Work, what: str, signals: int
) -> None:
    parent = start("-c", "2")
    left = [bench.create("leaves", {"what": what}) for _ in range(4)]
    until(lambda: bench.states(left) == ["SUCCEEDED"] * 4, 60)
    slow = bench.create("sleeps", {"seconds": 60 if signals == 2 else 1})
    until(lambda: bench.state(slow) == "RUNNING", 10)
    began = time.monotonic()
    for _ in range(signals):
        parent.send_signal(signal.SIGTERM)
        time.sleep(0.2)

    assert parent.wait(20) == 0

    assert time.monotonic() - began < 15
    back = bench.state(slow) == "PENDING"  # at the first signal only if it had not begun
    assert back or (signals == 1 and bench.state(slow) == "SUCCEEDED")
    assert bench.sql("SELECT count(*) FROM task_worker") == 0


@pytest.mark.parametrize("what", LEFT)
def test_nor_a_process_that_is_recycled(bench: Bench, start: Work, what: str) -> None:
    parent = start("-c", "1", "--max-tasks", "1")
    until(lambda: psutil.Process(parent.pid).children(), 60)
    (first,) = psutil.Process(parent.pid).children()
    ids = [bench.create("leaves", {"what": what}), bench.create("pid")]

    until(lambda: bench.states(ids) == ["SUCCEEDED"] * 2, 60)

    assert psutil.wait_procs([first], 15)[1] == []


def test_of_a_call_that_kills_its_process_the_guilty_item_alone_is_charged(
    bench: Bench, start: Work, log: Path
) -> None:
    """Each runs by itself then, and one of them kills a process again."""
    ids = [bench.create("bulk", {"n": n}) for n in range(6)]
    guilty, innocent = ids[3], [*ids[:3], *ids[4:]]
    start("-c", "1")
    until(lambda: bench.states(innocent) == ["SUCCEEDED"] * 5, 100)
    until(lambda: f"task {guilty} (bulk) ran in it and is charged" in log.read_text(), 40)
    assert [bench.task(task_id).failures for task_id in innocent] == [0] * 5


needs_namespaces = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"), reason="makes a pid namespace as root"
)


@needs_namespaces
def test_as_process_1_it_reaps_what_handlers_left(bench: Bench, start: Work, log: Path) -> None:
    """And sees how its own processes ended."""
    shell = start("-c", "1", before=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
    left = bench.create("forks_twice")
    until(lambda: bench.state(left) == "SUCCEEDED", 60)
    (first,) = psutil.Process(shell.pid).children()
    worker = first.children()[0]
    assert "--alone" in worker.cmdline()
    until(lambda: len(first.children()) == 2, 10)  # the grandchild is a zombie now
    until(lambda: first.children() == [worker], 10)

    worker.kill()

    after = bench.create("pid")
    until(lambda: bench.state(after) == "SUCCEEDED", 30)
    assert "the child ended with status -9; starting another" in log.read_text()
    first.send_signal(signal.SIGTERM)
    assert shell.wait(30) == 0


@needs_namespaces
def test_as_process_1_it_ends_when_it_is_asked_while_it_starts(start: Work) -> None:
    """The kernel keeps from process 1 what it does not handle."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and says nothing
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        more = {"TASKS_APP_DATABASE_URL": url}
        shell = start("-c", "1", before=("unshare", "--pid", "--fork", "--mount-proc"), more=more)
        until(lambda: psutil.Process(shell.pid).children(), 30)
        (first,) = psutil.Process(shell.pid).children()
        status, term = Path(f"/proc/{first.pid}/status"), 1 << (signal.SIGTERM - 1)
        until(lambda: int(re.findall(r"SigCgt:\s*(\w+)", status.read_text())[0], 16) & term, 30)
        first.send_signal(signal.SIGTERM)
        assert shell.wait(5) == 0


def test_sigusr1_ends_nobody_and_logs_stacks(bench: Bench, start: Work, log: Path) -> None:
    slow = bench.create("sleeps", {"seconds": 5})
    parent = start("-c", "2")
    until(lambda: bench.state(slow) == "RUNNING", 60)
    until(lambda: bench.sql("SELECT count(*) FROM task_worker") == 2, 30)
    processes = psutil.Process(parent.pid).children()

    parent.send_signal(signal.SIGUSR1)

    until(lambda: log.read_text().count("stacks, as somebody asked") == 2, 10)
    assert f"runs task {slow} (sleeps)" in log.read_text()
    processes[0].send_signal(signal.SIGUSR1)  # one of them
    until(lambda: "(most recent call first)" in log.read_text(), 10)
    until(lambda: bench.state(slow) == "SUCCEEDED", 30)
    assert psutil.Process(parent.pid).children() == processes


@pytest.mark.parametrize("before", [(), ("nohup",)])
def test_a_terminal_that_is_closed_drains_unless_nohup_says_otherwise(
    bench: Bench, start: Work, before: tuple[str, ...]
) -> None:
    slow = bench.create("sleeps", {"seconds": 3})
    parent = start("-c", "1", before=before)
    until(lambda: bench.state(slow) == "RUNNING", 60)
    parent.send_signal(signal.SIGHUP)
    until(lambda: bench.state(slow) == "SUCCEEDED", 30)
    if before:
        assert parent.poll() is None
        parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0


def living(parent: subprocess.Popen) -> list[psutil.Process]:
    children = psutil.Process(parent.pid).children()
    return [each for each in children if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("how", ['exec "$@" <&- 2>&- >&-', 'exec "$@" 2> >(true) > >(true)'])
def test_streams_that_are_closed_or_that_nobody_reads_stop_nothing(
    bench: Bench, start: Work, how: str
) -> None:
    done = bench.create("pid")
    parent = start("-c", "1", before=("bash", "-c", how, "bash"))
    until(lambda: bench.state(done) == "SUCCEEDED", 60)
    parent.send_signal(signal.SIGUSR1)
    until(lambda: bench.sql("SELECT count(stacks) FROM task_worker") == 1, 10)
    (child,) = living(parent)  # beside what bash left
    child.send_signal(signal.SIGUSR1)
    after = bench.create("pid")
    until(lambda: bench.state(after) == "SUCCEEDED", 30)
    assert living(parent) == [child]
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
