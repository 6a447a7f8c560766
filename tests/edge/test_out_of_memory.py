"""A container whose memory runs out is killed as a whole, twice in a row, with its tasks.

In a real memory cgroup: once one of the tasks takes the memory, once somebody outside of them
does. As Kubernetes has it (``memory.oom.group``), nothing in the group outlives the first kill of
the kernel. Where no cgroup can be had, only the kill of all processes at once is tried.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks_app.domain.tasks.records import Task
from tasks_app.domain.tasks.states import State
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.house.poisons import MAX_ATTEMPTS
from tests.clock import until
from tests.edge.memory_group import MemoryGroup, memory_group

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]

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


@pytest.fixture(autouse=True)
def _alone(house: House) -> Iterator[None]:
    """Each of these starts its own processes, and leaves none to the next."""
    yield
    house.end()


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
        """Return how often each task began."""
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
        """Kill all of it at once."""
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
    """Print what was charged."""
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
