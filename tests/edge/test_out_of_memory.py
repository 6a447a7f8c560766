"""Workers that run out of memory, and tasks that kill their process at every run.

Each of those tasks ends in the error pool after its bound, and none of the others is charged.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Row, text

from tasks_app import NewTask, create_tasks
from tasks_app.domain.tasks.records import Task
from tasks_app.domain.tasks.states import State
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.house.poisons import ASKS, MAX_ATTEMPTS, POISONS
from tests.clock import until

pytestmark = pytest.mark.usefixtures("alone")

ROOTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class MemoryGroup:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        one = (folder / "memory.limit_in_bytes").exists()
        self.version = 1 if one else 2
        self._limit = folder / ("memory.limit_in_bytes" if one else "memory.max")
        self._usage = folder / ("memory.usage_in_bytes" if one else "memory.current")
        self._events = folder / ("memory.oom_control" if one else "memory.events")
        if not one:
            (folder / "memory.oom.group").write_text("1")

    def add(self, pid: int) -> None:
        """Take a process in; what it forks from now on belongs to it, too."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def leave_room(self, size: int) -> None:
        self._limit.write_text(str(int(self._usage.read_text()) + size))

    def lift(self) -> None:
        self._limit.write_text("-1" if self.version == 1 else "max")

    @property
    def kills(self) -> int:
        """How often the kernel killed here because the memory ran out."""
        lines = dict(line.split() for line in self._events.read_text().splitlines())
        return int(lines["oom_kill"])

    def kill(self) -> None:
        """End every process in it, as ``memory.oom.group`` does in version 2."""
        while pids := self._pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _pids(self) -> list[int]:
        return [int(pid) for pid in (self._folder / "cgroup.procs").read_text().split()]

    def remove(self) -> None:
        self.kill()
        until(self._removed, 10, f"the end of {self._folder}")

    def _removed(self) -> bool:
        with suppress(OSError):
            self._folder.rmdir()
        return not self._folder.exists()


@contextmanager
def memory_group() -> Iterator[MemoryGroup | None]:
    """Make one for the block; None: this machine lets us have none."""
    group = next(filter(None, map(_made_in, ROOTS)), None)
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


def _made_in(root: Path) -> MemoryGroup | None:
    folder = root / f"tasks_app-test-{os.getpid()}"
    try:
        if (root / "cgroup.subtree_control").exists():
            (root / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
    except OSError:
        return None
    try:
        return MemoryGroup(folder)
    except OSError:
        folder.rmdir()
        return None


TIMES = 2
CHILDREN = 4
MAX_CRASHES = 3
ROOM = 150 * 1024 * 1024
SPANS = {
    "TASKS_APP_IMPORTS": "poison_handlers",
    "TASKS_APP_SCAN_INTERVAL": "200ms",
    "TASKS_APP_LEASE": "3s",
    "TASKS_APP_MAX_CRASHES": str(MAX_CRASHES),
}
MOST_KILLS = MAX_ATTEMPTS + MAX_CRASHES - 1
"""The kernel may kill the task alone before all others: then it failed, else it crashed."""
EATER = "input()\nhoard = []\nwhile True: hoard.append(b'x' * 5_000_000)"
FAILED = "SELECT count(*) FROM task_error WHERE id = ANY(:ids)"
RUNNING = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING' AND id = ANY(:ids)"


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    """A memory cgroup; who wants one is skipped where there is none."""
    with memory_group() as made:
        if made is None:
            pytest.skip("it needs a memory cgroup that may be written")
        yield made


class Container:
    """A worker that is started again, under the same name, whenever it was killed."""

    def __init__(self, house: House, folder: Path, group: MemoryGroup | None) -> None:
        self._house = house
        self._folder = folder
        self._group = group
        self._starts = folder / "starts"
        self._starts.touch()
        self._worker: CeleryProcess | None = None

    def runs(self) -> Counter[int]:
        return Counter(map(int, self._starts.read_text().split()))

    def start(self) -> None:
        """Start it, without a limit for now."""
        arguments = ("worker", "-c", str(CHILDREN), "-n", "container@%h", "-l", "INFO")
        self._worker = self._house.start(*arguments, STARTS=str(self._starts), **SPANS)
        if self._group is not None:
            self._group.lift()
            self._group.add(self._worker.pid)  # before it forks

    def holds(self, ids: list[int]) -> None:
        """Wait until all of them run, and run once more than before."""
        before = self.runs()
        self.start()
        until(lambda: all(self.runs()[id_] > before[id_] for id_ in ids), 120, "the next runs")
        until(lambda: self._house.sql(RUNNING, ids=ids) == len(ids), 10)

    def kill(self) -> None:
        assert self._worker is not None
        self._worker.signal_all(signal.SIGKILL)
        self._worker.wait(10)

    def dies_of(self, group: MemoryGroup, way: str, word: Path) -> None:
        """Let the memory run out; nobody in it is left."""
        assert self._worker is not None
        before = group.kills
        group.leave_room(ROOM)
        if way == "a task":
            word.touch()
        else:
            eater = subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE)
            group.add(eater.pid)
            eater.communicate(b"now\n")  # until it was killed
        until(lambda: group.kills > before, 60, "the kernel's kill")
        group.kill()
        self._worker.wait(10)


def report(title: str, tasks: list[Task], runs: Counter[int]) -> None:
    print(f"\n{title}:")
    for task in tasks:
        print(
            f"| {task.name} {task.id} | {task.state} | runs {runs[task.id]} "
            f"| crashes {task.crashes} | failures {task.failures} | {task.error or ''} |"
        )


def goods_are_well(house: House, tasks: list[Task], runs: Counter[int]) -> None:
    """Each is done, once, after as many runs as it crashed, and one."""
    assert {task.state for task in tasks} == {State.SUCCEEDED}
    assert {task.failures for task in tasks} == {0}
    assert {(task.crashes, runs[task.id]) for task in tasks} == {(TIMES, TIMES + 1)}
    assert house.effects() == (len(tasks), len(tasks))


@pytest.mark.timeout(600, method="thread")
def test_all_processes_of_a_worker_are_killed_at_once(house: House, tmp_path: Path) -> None:
    go = tmp_path / "go"
    house.beat(**SPANS)
    container = Container(house, tmp_path, None)
    ids = house.create("good.long", CHILDREN, {"go": str(go)})
    for _ in range(TIMES):
        container.holds(ids)
        container.kill()
    container.holds(ids)
    go.touch()
    house.over(ids, 60)

    tasks = [house.task(id_) for id_ in ids]
    report("killed at once, no memory limit", tasks, container.runs())
    goods_are_well(house, tasks, container.runs())


@pytest.mark.timeout(600, method="thread")
def test_the_memory_runs_out_outside_of_the_tasks(
    house: House, tmp_path: Path, group: MemoryGroup
) -> None:
    go = tmp_path / "go"
    house.beat(**SPANS)
    container = Container(house, tmp_path, group)
    ids = house.create("good.long", CHILDREN, {"go": str(go)})
    for _ in range(TIMES):
        container.holds(ids)
        container.dies_of(group, "another process", go)
    container.holds(ids)
    go.touch()
    house.over(ids, 60)

    tasks = [house.task(id_) for id_ in ids]
    report(f"cgroup v{group.version}, another process takes the memory", tasks, container.runs())
    goods_are_well(house, tasks, container.runs())


@pytest.mark.timeout(600, method="thread")
def test_one_of_the_tasks_takes_all_memory_each_time(
    house: House, tmp_path: Path, group: MemoryGroup
) -> None:
    """It goes on to do so when the others are done, until it lies in the error pool."""
    go = tmp_path / "go"
    house.beat(**SPANS)
    container = Container(house, tmp_path, group)
    ids = house.create("good.long", CHILDREN - 1, {"go": str(go)})
    hog = house.create("hog", 1, {"go": str(tmp_path / "eat")})
    for number in range(MOST_KILLS):
        (tmp_path / "eat").unlink(missing_ok=True)
        waits = [*ids, *hog] if number <= TIMES else hog
        container.holds(waits)
        if number == TIMES:
            go.touch()
            house.over(ids, 60)
        container.dies_of(group, "a task", tmp_path / "eat")
        until(lambda: house.sql(RUNNING, ids=[*ids, *hog]) == 0, 30, "the rescue")
        if house.sql(FAILED, ids=hog):
            break

    tasks = [house.task(id_) for id_ in ids]
    runs = container.runs()
    last = house.task(hog[0])
    report(f"cgroup v{group.version}, a task takes the memory", [*tasks, last], runs)
    goods_are_well(house, tasks, runs)
    assert last.state is State.FAILED
    assert last.failures <= MAX_ATTEMPTS
    assert last.crashes <= MAX_CRASHES
    assert runs[last.id] == last.failures + last.crashes <= MOST_KILLS


GOOD_BESIDE = 100
POISON_CRASHES = 5
SPANS_OF_POISON = {
    "TASKS_APP_LEASE": "30s",
    "TASKS_APP_IMPORTS": "poison_handlers",
    "TASKS_APP_SCAN_INTERVAL": "200ms",
    "TASKS_APP_MAX_CRASHES": str(POISON_CRASHES),
}
ENDED_ALL = text("SELECT id, name, state, failures, crashes, error FROM task_all ORDER BY id")


def report_poison(poison: Sequence[Row[Any]], runs: Counter[int]) -> None:
    told = Counter(
        (r.name, r.state, r.failures, r.crashes, runs[r.id], r.error.partition(":")[0])
        for r in poison
    )
    for (name, state, failures, crashes, ran, error), number in sorted(told.items()):
        print(
            f"| {number} {name} | {state} | failures {failures} | crashes {crashes} "
            f"| runs {ran} | {error} |"
        )


def mixed(house: House, beside: str) -> list[int]:
    """Create them all in one transaction, one among the other."""
    names = [f"poison.{kind}" for kind in POISONS] + [beside] * GOOD_BESIDE
    random.Random(5).shuffle(names)
    with house.engine.begin() as connection:
        return create_tasks(connection, [NewTask(name) for name in names])


def is_bounded(row: Row[Any], ran: int, *, alone: bool) -> bool:
    """Whether it ran as often as it may, and was charged for each run."""
    if row.name.removeprefix("poison.") in ASKS:
        return (row.failures, row.crashes) == (0, POISON_CRASHES) and ran <= POISON_CRASHES
    most_crashes = 0 if alone else 1  # from then on it is claimed alone
    return (
        row.failures == MAX_ATTEMPTS
        and row.crashes <= most_crashes
        and ran <= row.failures + row.crashes
    )


@pytest.mark.timeout(400, method="thread")
@pytest.mark.parametrize("beside", ["good", "good.async"])
def test_tasks_that_kill_their_process_at_every_run(
    house: House, tmp_path: Path, beside: str
) -> None:
    """Beside async ones nobody knows who it was the first time: one crash for each on board."""
    starts = tmp_path / "starts"
    house.beat(**SPANS_OF_POISON)
    worker = house.worker(children=2, STARTS=str(starts), **SPANS_OF_POISON)
    parent = psutil.Process(worker.pid)
    born, began = parent.create_time(), time.monotonic()

    house.over(mixed(house, beside), 300)

    took = time.monotonic() - began
    runs = Counter(map(int, starts.read_text().split()))
    with house.engine.connect() as connection:
        rows = connection.execute(ENDED_ALL).all()
    good = [row for row in rows if row.name == beside]
    poison = [row for row in rows if row.name != beside]
    print(f"\n{len(poison)} poisoned, {len(good)} {beside}: {took:.0f} s")
    report_poison(poison, runs)
    print(f"crashes of good tasks: {dict(Counter(row.crashes for row in good))}")
    assert parent.is_running()
    assert parent.create_time() == born
    assert len(poison) == len(POISONS)
    assert {row.state for row in poison} == {"FAILED"}
    assert {row.state for row in good} == {"SUCCEEDED"}
    assert {row.failures for row in good} == {0}
    assert house.effects() == (GOOD_BESIDE, GOOD_BESIDE)
    alone = beside == "good"
    assert [row for row in poison if not is_bounded(row, runs[row.id], alone=alone)] == []
    if alone:
        assert {(row.crashes, runs[row.id]) for row in good} == {(0, 1)}
